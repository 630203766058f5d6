// Draws that are the same on every machine: the standard fixes the numbers of std::mt19937_64 and
// of std::seed_seq, but not those of its distributions. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace condense {

class Draw {
 public:
  // `parts`: the seed, then what tells this stream of draws from others of the same seed.
  Draw(std::initializer_list<uint64_t> parts) : engine_(Engine(parts)) {}

  // [0, n), n > 0. The remainder's bias is below n / 2^64.
  uint64_t Below(uint64_t n) {
    CONDENSE_CHECK(n > 0);
    return engine_() % n;
  }
  uint64_t Bits() { return engine_(); }

  template <typename T>
  const T& One(const std::vector<T>& values) {
    return values[Below(values.size())];
  }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[Below(i)]);
  }
  // `n` unlike numbers of [0, n_all), in the order drawn.
  std::vector<int> Several(int n, int n_all) {
    CONDENSE_CHECK(n <= n_all);
    std::vector<int> all(n_all);
    for (int i = 0; i < n_all; ++i) all[i] = i;
    Shuffle(all);
    all.resize(n);
    return all;
  }
  std::string Letters(int n, char first) {
    std::string text;
    for (int i = 0; i < n; ++i) text += static_cast<char>(first + Below(26));
    return text;
  }

 private:
  static std::mt19937_64 Engine(std::initializer_list<uint64_t> parts) {
    std::vector<uint32_t> words;
    for (const uint64_t part : parts) {
      words.push_back(static_cast<uint32_t>(part));
      words.push_back(static_cast<uint32_t>(part >> 32));
    }
    std::seed_seq seeds(words.begin(), words.end());
    return std::mt19937_64(seeds);
  }
  std::mt19937_64 engine_;
};

// A stream's number by its name: FNV-1a.
inline uint64_t StreamOf(std::string_view name) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

}  // namespace condense

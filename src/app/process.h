// For tests: runs a program, catches what it writes, sends it signals.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace condense {

struct Outcome {
  int code = -1;  // exit code; -1 where a signal ended it
  std::string out, err;
};

inline std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A child process whose output goes into files of `folder`.
class Process {
 public:
  Process(std::vector<std::string> command, const std::string& folder)
      : out_(folder + "/out"), err_(folder + "/err") {
    child_ = fork();
    if (child_ != 0) return;
    std::vector<char*> argv;
    argv.reserve(command.size() + 1);
    for (std::string& word : command) argv.push_back(word.data());
    argv.push_back(nullptr);
    dup2(open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(open(err_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  void Signal(int number) const { kill(child_, number); }
  Outcome Wait() const {
    int status = 0;
    waitpid(child_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadBytes(out_), ReadBytes(err_)};
  }

 private:
  std::string out_, err_;
  pid_t child_;
};

}  // namespace condense

// What the command needs to know of the machine: cores, memory that is free for it, names and
// places.
#pragma once

#include <cstdint>
#include <string>

namespace condense {

// Physical cores that this process may use: llama.cpp's default number of threads.
int PhysicalCores();

// Bytes that can still be taken: the kernel's estimate, or what a control group leaves where that
// is less. 0 where the system does not say.
uint64_t AvailableMemory();

std::string CpuName();

// $CONDENSE_MODEL, else the bundled model beside this executable or the build; "" where there is
// none.
std::string DefaultModelPath();

// The text that every Debian system has; "" where there is none.
std::string DefaultTextPath();

// "1.5 GB", "23 kB": powers of 1000.
std::string FormatBytes(uint64_t bytes);

}  // namespace condense

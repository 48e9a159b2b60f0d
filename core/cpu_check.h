// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_CPU_CHECK_H_
#define MILLRACE_CORE_CPU_CHECK_H_

// The CPU check: a program on a CPU that lacks instructions which it was compiled with says so in
// one line on stderr and exits with 1, instead of dying of SIGILL somewhere.
//
//   mnist_train: the CPU must have the instructions that this program was built with (x86-64-v3:
//   Intel Haswell, AMD Zen or later), got one without AVX2, FMA
//
// It is linked into every program and shared library that has a Status (core/status.h), and runs
// before every other initialiser of this project. A library therefore ends the process that loads
// it: none of its functions could run there, and its own initialisers would be the first to die.
//
// A program's own libraries may have initialisers that take inline functions from the program,
// which were compiled for the newer CPU (Abseil's flags do): programs that link
// core/cpu_check_first.cc check before any of them.
//
// Nothing here may use an instruction that x86-64 lacks, whatever the compiler was told: functions
// carry MR_ANY_X86_64 and call only the C library and each other. On other architectures there is
// no check.
//
// MILLRACE_PRETEND_CPU=x86-64 in the environment makes it see such a CPU: for tests.
//
// Thread-safety: pure functions. Failure: none.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#define MR_ANY_X86_64 __attribute__((target("arch=x86-64")))

namespace millrace {

// The words of CPUID (and of XGETBV, 0 where there is none) that say which instructions work.
struct CpuWords {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t extended1_ecx = 0;
  uint32_t xcr0 = 0;  // which registers the system saves
};

// Ends the process as above when this CPU lacks something; `program` is its name for the message.
MR_ANY_X86_64 void CheckCpu(const char* program);

// Of the CPU that this runs on.
MR_ANY_X86_64 CpuWords ReadCpuWords();

// Writes the instruction sets that this file was compiled with and `words` do not have to `text`,
// as "AVX2, FMA" (what does not fit into `size` is left out); returns how many they are.
MR_ANY_X86_64 int MissingInstructions(const CpuWords& words, char* text, size_t size);

}  // namespace millrace

#endif  // __x86_64__

#endif  // MILLRACE_CORE_CPU_CHECK_H_

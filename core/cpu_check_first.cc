// SPDX-License-Identifier: Apache-2.0
//
// The CPU check before the initialisers of all shared libraries. Only an executable can have this:
// it is linked into programs, never into a library.
#include "core/cpu_check.h"

#if defined(__x86_64__)

namespace millrace {
namespace {

// The C library is not initialised yet: what there is to know comes as arguments.
MR_ANY_X86_64 void CheckCpuFirst(int argc, char** argv, char** /*environment*/) {
  const char* name = argc > 0 && argv[0] != nullptr ? argv[0] : "";
  for (const char* c = name; *c != '\0'; ++c) {
    if (*c == '/') name = c + 1;
  }
  CheckCpu(name);
}

__attribute__((section(".preinit_array"),
               used)) void (*const check_cpu_first)(int, char**, char**) = &CheckCpuFirst;

}  // namespace
}  // namespace millrace

#endif  // __x86_64__

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_OP_LIBRARY_H_
#define MILLRACE_RUNTIME_OP_LIBRARY_H_

// Op libraries: ops and kernels in a shared library of their own, for a program that runs already.
//
//   MR_RETURN_IF_ERROR(LoadOpLibrary("build/gelu.so").status());
//   const Output y = custom_op::Gelu(scope, x);  // its builder, or BuildOp(scope, "Gelu", {x})
//
// Such a library has op families (runtime/kernel.h) as a program that is linked with them has, and
// says once, in one of its sources, what it is:
//
//   MILLRACE_OP_LIBRARY();
//
// (`op_family(shared = True)` adds that source.) It is linked with nothing of Millrace but
// libmillrace.so; where Millrace is linked into the program, the program exports its symbols
// (-rdynamic). docs/adding_an_op.md builds one.
//
// Invariants:
//   * a library built for another version is refused before any of its code runs (libraries that it
//     names as its own dependencies are loaded with it, and not asked);
//   * of a library that is refused nothing is registered;
//   * what is registered stays until the process ends: a library is never unloaded.
// A session that is open sees the ops in what it is extended with from then on. On a cluster every
// task loads the library: ops do not travel.
//
// Thread-safety: any thread; one library is loaded at a time.
// Failure: see LoadOpLibrary. A library runs with the rights of the program: one that crashes, or
// ends the process, while it is loaded cannot be held back.

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/version.h"

namespace millrace {

// Loads the shared library at `path` (relative to the working directory) and returns the op kinds
// that it brings, sorted; none when it brings kernels alone. The same file again: the same answer.
//
// NotFound: no such file. InvalidArgument: not a library that this program can load, with the
// loader's reason; one that says no version; one that registers nothing, or something illegal.
// FailedPrecondition: built for another version; in the process already, linked or opened by
// others; changed since it was loaded. AlreadyExists: an op kind or kernel that exists already.
// Internal: one of its initialisers threw.
StatusOr<std::vector<std::string>> LoadOpLibrary(const std::string& path);

namespace op_library_internal {

// An ELF note (elf.h's Elf64_Nhdr, name, description): what is read of a library before its code
// runs. `readelf -n` shows it.
inline constexpr char kNoteName[] = "Millrace";
inline constexpr uint32_t kVersionNote = 1;
struct VersionNote {
  uint32_t name_size, version_size, type;
  char name[12], version[20];
};
static_assert(sizeof(VersionNote) == 44);

// Of a MAJOR.MINOR.PATCH; what is longer than the note is cut off.
constexpr VersionNote MakeVersionNote(const char* version) {
  VersionNote note = {sizeof(kNoteName), sizeof(note.version), kVersionNote, {}, {}};
  for (size_t i = 0; i + 1 < sizeof(kNoteName); ++i) note.name[i] = kNoteName[i];
  for (size_t i = 0; i + 1 < sizeof(note.version) && version[i] != 0; ++i) {
    note.version[i] = version[i];
  }
  return note;
}

// As the loader calls those of a library.
using Initialiser = void (*)(int argc, char** argv, char** environment);

// Runs the initialisers of a library that LoadOpLibrary loads, all that come after `first`, which
// calls this, and catches what they throw: the loader, which would run them, holds its lock for
// ever when an exception goes through it. Does nothing for a library that is loaded otherwise.
void RunInitialisers(Initialiser first, int argc, char** argv, char** environment) noexcept;

}  // namespace op_library_internal
}  // namespace millrace

// Makes a shared library an op library; once in each, outside of namespaces.
#define MILLRACE_OP_LIBRARY() MILLRACE_OP_LIBRARY_FOR(MILLRACE_VERSION)

// The same for a version of choice: for tests.
#define MILLRACE_OP_LIBRARY_FOR(version)                                                       \
  __attribute__((section(".note.millrace"), used,                                              \
                 aligned(4))) constinit const ::millrace::op_library_internal::VersionNote     \
      millrace_op_library_version = ::millrace::op_library_internal::MakeVersionNote(version); \
  /* 101: before every other initialiser whose place is not reserved. */                       \
  __attribute__((constructor(101))) static void MillraceRunInitialisers(int argc, char** argv, \
                                                                        char** environment) {  \
    ::millrace::op_library_internal::RunInitialisers(&MillraceRunInitialisers, argc, argv,     \
                                                     environment);                             \
  }                                                                                            \
  static_assert(true, "a semicolon follows")

#endif  // MILLRACE_RUNTIME_OP_LIBRARY_H_

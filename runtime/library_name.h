// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_LIBRARY_NAME_H_
#define MILLRACE_RUNTIME_LIBRARY_NAME_H_

// The name of libmillrace.so in a program that Millrace is linked into.
//
// An op library that is built with an installed Millrace says that it needs
// libmillrace.so.MAJOR.MINOR. A program that has Millrace of its own must not load that one, too: a
// second copy has registries of its own, and protobuf ends a process that has a message twice. So
// an empty library takes the name first. The loader is content with it, and finds what the op
// library uses in the program, which exports its symbols.
//
// Thread-safety: any thread; one at a time.

#include <string>

namespace millrace {

// Loads an empty library of this name, for as long as the process lives, unless a library of the
// name is loaded. Does nothing where the system has no memfd_create or no /proc: the loader then
// looks for the library itself.
void TakeLibraryName(const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_LIBRARY_NAME_H_

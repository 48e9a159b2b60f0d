// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_VERSION_H_
#define MILLRACE_CORE_VERSION_H_

// Version: the one place that says which release this is. The shared library's name, the packages
// of tools/install.sh and every program's --version take it from here. Also C.
//
// MAJOR.MINOR.PATCH. Programs built against one MINOR run with every PATCH of it; while MAJOR is 0,
// a MINOR may change anything.

#define MILLRACE_VERSION "0.7.0"

#ifdef __cplusplus
namespace millrace {

// Of the headers that a source was compiled with.
inline constexpr char kVersion[] = MILLRACE_VERSION;

}  // namespace millrace
#endif

#endif  // MILLRACE_CORE_VERSION_H_

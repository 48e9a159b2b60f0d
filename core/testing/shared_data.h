// SPDX-License-Identifier: Apache-2.0
//
// Where tests find the files that real TensorFlow wrote.
//
// They are not part of the repository: the environment variable MILLRACE_SHARED
// names the folder whose subfolder `data` has them, as an absolute path (tests
// run elsewhere than the shell). A test that needs such a file asks for its
// path and, when that is empty, skips itself with a reason:
//
//   const std::string path = SharedDataPath("saved_models/half_plus_two");
//   if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/half_plus_two";
//
// Thread-safety: any thread, as long as nobody changes the environment.
// Failure: never; what is not there is an empty path.

#ifndef MILLRACE_CORE_TESTING_SHARED_DATA_H_
#define MILLRACE_CORE_TESTING_SHARED_DATA_H_

#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// The absolute path of `relative` (a file or a folder below data/), or "" when
// MILLRACE_SHARED is not set or has no such entry. "" asks for data/ itself.
std::string SharedDataPath(absl::string_view relative);

// True when MILLRACE_SHARED names a folder with a subfolder data.
bool SharedDataAvailable();

}  // namespace millrace

#endif  // MILLRACE_CORE_TESTING_SHARED_DATA_H_

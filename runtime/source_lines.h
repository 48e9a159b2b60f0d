// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SOURCE_LINES_H_
#define MILLRACE_RUNTIME_SOURCE_LINES_H_

// SourceLines: which program line made which node, for the error messages of a client's session.
//
// The lines never travel: a session keeps those of the Scopes that it was extended with and
// completes the errors that steps end with.
//
// Thread-safety: all methods, from any thread.

#include <string>
#include <utility>
#include <vector>

#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

class SourceLines {
 public:
  // (node name, "file:line").
  void Add(std::vector<std::pair<std::string, std::string>> lines);
  // Puts "; built at file:line" behind the message of an error that names a known node in the form
  // "{{node X}}". Other statuses, and those that say it already, stay as they are.
  Status Complete(const Status& status) const;

 private:
  mutable Mutex mu_;
  HashMap<std::string, std::string> lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SOURCE_LINES_H_

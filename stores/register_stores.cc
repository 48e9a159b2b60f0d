// SPDX-License-Identifier: Apache-2.0

// A program that links this knows the schemes of all stores.

#include "core/file_system.h"
#include "stores/s3_file_system.h"

namespace millrace {
namespace {

// Never destroyed: files may be open when the program ends.
[[maybe_unused]] const bool registered = [] {
  RegisterFileScheme("s3", new S3FileSystem);
  return true;
}();

}  // namespace
}  // namespace millrace

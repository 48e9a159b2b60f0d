// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_NPY_H_
#define MILLRACE_FORMATS_NPY_H_

// numpy's files: .npy (one array) and .npz (a zip of named arrays).
//
// Read: format versions 1, 2 and 3, either byte order, C and Fortran order; bool, integers,
// float16/32/64, complex64/128, byte strings ('S': trailing NULs are not part of a string, as in
// numpy) and text ('U': becomes UTF-8). Never pickles: an array of Python objects is refused.
//
// Written: version 1, little-endian, C order. What numpy has no type for: bfloat16 as float32,
// quantised types as the integers they hold, strings as 'S' of the longest one (so that trailing
// NULs of a string are lost; LengthsOf gives what restores them). Resources and variants: refused.
//
// A header's sizes are checked against the file before anything is allocated; an .npz entry may
// not claim more bytes than deflate can make of what the archive holds.
//
// Thread-safety: pure functions and files. Failure: InvalidArgument for what is no such file
// or holds what is not read, DataLoss when it ends too early, the file system's errors; with path.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// In the order of the archive; names without ".npy".
using NamedArrays = std::vector<std::pair<std::string, Tensor>>;

enum class NpzCompression { kStored, kDeflate };

// The bytes of an .npy file.
StatusOr<Tensor> ParseNpy(absl::string_view bytes);
// Unimplemented for resources and variants, named by `what` in the message.
StatusOr<std::string> FormatNpy(const Tensor& tensor, absl::string_view what = "array");

StatusOr<Tensor> ReadNpy(FileSystem* fs, const std::string& path);
// Atomically.
Status WriteNpy(FileSystem* fs, const std::string& path, const Tensor& tensor);

StatusOr<NamedArrays> ReadNpz(FileSystem* fs, const std::string& path);
// Atomically. AlreadyExists when two arrays have one name.
Status WriteNpz(FileSystem* fs, const std::string& path, const NamedArrays& arrays,
                NpzCompression compression = NpzCompression::kStored);

// The lengths of a string tensor's elements, as int64 of the same shape.
StatusOr<Tensor> LengthsOf(const Tensor& strings);
// Strings cut or filled up with NULs to these lengths: the inverse. InvalidArgument when shapes
// differ, a length is negative or their sum passes `max_total`.
StatusOr<Tensor> WithLengths(const Tensor& strings, const Tensor& lengths,
                             int64_t max_total = int64_t{1} << 30);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_NPY_H_

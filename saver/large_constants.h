// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_LARGE_CONSTANTS_H_
#define MILLRACE_SAVER_LARGE_CONSTANTS_H_

// Large constants: a SavedModel's file read piece by piece, the bytes of its large constants at
// once into their tensors. So a frozen model is held once while it loads: never as a file, a
// message and tensors side by side.
//
// In the message a mark stands for such bytes, which no reader takes for a value (it is shorter
// than any of them). What is not the value of a Const node, as a message of this program or
// TensorFlow writes it, is in the message as ever: other attrs, constants in functions, bools,
// strings, values as lists. A file with a content that begins as a mark is not read so.
//
// A paced thread (core/paced_thread.h) has a pace point after each piece of the file.
//
// Thread-safety: pure functions.

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "proto/saved_model.pb.h"

namespace tensorflow {
class GraphDef;
}  // namespace tensorflow

namespace millrace {

class Graph;  // graph/graph.h

// By the names of their nodes.
using LargeConstants = std::map<std::string, Tensor>;

// From so many bytes on; what is smaller costs no more than its node.
inline constexpr size_t kLargeConstantBytes = size_t{64} << 10;

struct ModelInPieces {
  tensorflow::SavedModel model;
  std::vector<LargeConstants> constants;  // of each meta graph
};
// Of a binary file. Nothing when it cannot be read so, for whatever reason: then the reader of the
// whole file (saver/saved_model_reader.h) reads it, or says what is wrong.
std::optional<ModelInPieces> ReadModelInPieces(FileSystem* fs, const std::string& path);

// Into `graph`, which is empty, with these values in place of the marks. Fails as ImportGraphDef.
Status ImportWithConstants(const tensorflow::GraphDef& def, const LargeConstants& constants,
                           Graph* graph);

}  // namespace millrace

#endif  // MILLRACE_SAVER_LARGE_CONSTANTS_H_

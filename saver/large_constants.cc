// SPDX-License-Identifier: Apache-2.0
#include "saver/large_constants.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/coding.h"
#include "core/dtype.h"
#include "core/paced_thread.h"
#include "core/shape.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/node_body.h"
#include "proto/attr_value.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/tensor.pb.h"

namespace millrace {
namespace {

using google::protobuf::io::CodedInputStream;
using tensorflow::NodeDef;

constexpr char kValueAttr[] = "value";
// What is read at a time, and goes on to where it belongs while it is in the core's cache.
constexpr size_t kBlockBytes = size_t{256} << 10;
// By which a string grows whose length only the file says.
constexpr int kPieceBytes = 1 << 20;
static_assert(kLargeConstantBytes >= kDetachedConstantBytes);

class FileStream final : public google::protobuf::io::ZeroCopyInputStream {
 public:
  explicit FileStream(const RandomAccessFile* file) : file_(file), block_(kBlockBytes) {}

  bool Next(const void** data, int* size) override {
    if (backed_up_ == 0) {
      PacePoint();  // of the block before
      filled_ = static_cast<size_t>(std::min<uint64_t>(file_->size() - read_, kBlockBytes));
      if (filled_ == 0 || !file_->Read(read_, filled_, block_.data()).ok()) {
        filled_ = 0;
        return false;
      }
      read_ += filled_;
      backed_up_ = filled_;
    }
    *data = block_.data() + (filled_ - backed_up_);
    *size = static_cast<int>(std::exchange(backed_up_, 0));
    return true;
  }
  void BackUp(int count) override { backed_up_ = static_cast<size_t>(count); }
  bool Skip(int count) override {
    const void* data;
    int size;
    while (count > 0) {
      if (!Next(&data, &size)) return false;
      if (size > count) BackUp(size - count);
      count -= std::min(size, count);
    }
    return true;
  }
  int64_t ByteCount() const override { return static_cast<int64_t>(read_ - backed_up_); }

 private:
  const RandomAccessFile* const file_;
  std::vector<char> block_;
  uint64_t read_ = 0;
  size_t filled_ = 0, backed_up_ = 0;  // of the block; backed up: its last bytes
};

// The tag of a field that has its length in front.
constexpr uint32_t TagOf(int field) { return static_cast<uint32_t>(field) << 3 | 2; }

// Fields on the way from a node to the bytes of a constant: NodeDef.attr, the value of that entry,
// AttrValue.tensor, TensorProto.tensor_content.
constexpr int kMapValue = 2;
constexpr uint32_t kWay[] = {TagOf(NodeDef::kAttrFieldNumber), TagOf(kMapValue),
                             TagOf(tensorflow::AttrValue::kTensorFieldNumber),
                             TagOf(tensorflow::TensorProto::kTensorContentFieldNumber)};
constexpr size_t kContent = std::size(kWay) - 1;

// Different from all others of this process.
std::string NextMark() {
  static std::atomic<uint64_t> next{1};  // relaxed: only distinct
  return absl::StrCat("elsewhere",
                      absl::Hex(next.fetch_add(1, std::memory_order_relaxed), absl::kZeroPad16));
}

// The tensor that `value`, but for its content, and the bytes are; no value where a graph would not
// keep them as they are.
Tensor TensorOf(const tensorflow::TensorProto& value, const BufferRef& bytes) {
  const StatusOr<DType> dtype = DTypeFromNumber(value.dtype());
  const StatusOr<Shape> shape = Shape::FromProto(value.tensor_shape());
  // Bytes of a bool may be others than 0 and 1.
  if (!dtype.ok() || !shape.ok() || *dtype == DT_BOOL || IsRef(*dtype) || !IsMemcopyable(*dtype)) {
    return Tensor();
  }
  const size_t width = DTypeSize(*dtype);
  const uint64_t count = static_cast<uint64_t>(shape->num_elements());
  if (bytes->size() % width != 0 || bytes->size() / width != count) return Tensor();
  StatusOr<Tensor> tensor = Tensor::FromBuffer(*dtype, *shape, bytes, 0);
  if (!tensor.ok() || !NodeBodies::CanShare(*tensor)) return Tensor();
  return *std::move(tensor);
}

// Each function says whether the file is as it expects.
class PieceReader {
 public:
  explicit PieceReader(const RandomAccessFile* file) : stream_(file), in_(&stream_) {}

  bool ReadModel(int size, ModelInPieces* out) {
    std::string rest;
    return Fields(size,
                  [&](uint32_t tag) {
                    if (tag != TagOf(tensorflow::SavedModel::kMetaGraphsFieldNumber)) {
                      return CopyField(tag, &rest);
                    }
                    constants_ = &out->constants.emplace_back();
                    return ReadMetaGraph(out->model.add_meta_graphs());
                  }) &&
           out->model.MergeFromString(rest);
  }

 private:
  // A large content of the node that is being read.
  struct Content {
    std::string mark;
    BufferRef bytes;
  };

  bool ReadMetaGraph(tensorflow::MetaGraphDef* meta) {
    int size;
    std::string rest;
    return ReadLength(&size) &&
           Fields(size,
                  [&](uint32_t tag) {
                    return tag == TagOf(tensorflow::MetaGraphDef::kGraphDefFieldNumber)
                               ? ReadGraph(meta->mutable_graph_def())
                               : CopyField(tag, &rest);
                  }) &&
           meta->MergeFromString(rest);
  }

  bool ReadGraph(tensorflow::GraphDef* graph) {
    int size;
    std::string rest;
    return ReadLength(&size) &&
           Fields(size,
                  [&](uint32_t tag) {
                    return tag == TagOf(tensorflow::GraphDef::kNodeFieldNumber)
                               ? ReadNode(graph->add_node())
                               : CopyField(tag, &rest);
                  }) &&
           graph->MergeFromString(rest);
  }

  bool ReadNode(NodeDef* node) {
    int size;
    if (!ReadLength(&size)) return false;
    node_.clear();
    contents_.clear();
    const bool is_read = static_cast<size_t>(size) < kLargeConstantBytes
                             ? CopyBytes(size, &node_)
                             : CopyMessage(size, 0, &node_);
    if (!is_read || !node->ParseFromString(node_)) return false;
    if (!contents_.empty()) GiveContents(node);
    return true;
  }

  // Constants become tensors, other contents go where their marks are.
  void GiveContents(NodeDef* node) {
    for (auto& [name, attr] : *node->mutable_attr()) {
      if (attr.value_case() != tensorflow::AttrValue::kTensor) continue;
      const std::string& mark = attr.tensor().tensor_content();
      const auto content = std::find_if(contents_.begin(), contents_.end(),
                                        [&](const Content& one) { return one.mark == mark; });
      if (content == contents_.end()) continue;
      if (name == kValueAttr && NodeBody::KindOf(node->op()) == NodeBody::Kind::kConst) {
        Tensor value = TensorOf(attr.tensor(), content->bytes);
        // A second node of a name is an error of the import.
        if (value.has_value() && constants_->emplace(node->name(), std::move(value)).second) {
          continue;
        }
      }
      attr.mutable_tensor()->mutable_tensor_content()->assign(
          static_cast<const char*>(content->bytes->data()), content->bytes->size());
    }
    contents_.clear();
  }

  // The fields of a message of `size` bytes, which are there, with marks for large contents on the
  // way.
  bool CopyMessage(int size, size_t step, std::string* to) {
    return Fields(size, [&](uint32_t tag) {
      if (tag != kWay[step]) return CopyField(tag, to);
      int length;
      if (!ReadLength(&length)) return false;
      std::string inner;
      const bool is_read = static_cast<size_t>(length) < kLargeConstantBytes
                               ? CopyBytes(length, &inner)
                           : step == kContent ? TakeContent(length, &inner)
                                              : CopyMessage(length, step + 1, &inner);
      if (!is_read) return false;
      PutVarint32(to, tag);
      PutVarint64(to, inner.size());
      to->append(inner);
      return true;
    });
  }

  bool TakeContent(int length, std::string* mark) {
    const BufferRef bytes = Buffer::Allocate(DefaultAllocator(), static_cast<size_t>(length));
    if (!bytes || !in_.ReadRaw(bytes->data(), length)) return false;
    *mark = NextMark();
    contents_.push_back({*mark, bytes});
    return true;
  }

  // Calls on_field(tag) for each field of the next `size` bytes, which reads what follows the tag.
  template <typename OnField>
  bool Fields(int size, OnField on_field) {
    const CodedInputStream::Limit outer = in_.PushLimit(size);
    while (in_.BytesUntilLimit() > 0) {
      const uint32_t tag = in_.ReadTag();
      if (tag == 0 || !on_field(tag)) return false;
    }
    in_.PopLimit(outer);
    return true;
  }

  // Of what is there whole.
  bool ReadLength(int* length) {
    uint64_t value;
    if (!in_.ReadVarint64(&value) || value > static_cast<uint64_t>(in_.BytesUntilLimit())) {
      return false;
    }
    *length = static_cast<int>(value);
    return true;
  }

  bool CopyField(uint32_t tag, std::string* to) {
    PutVarint32(to, tag);
    uint64_t number;
    uint32_t small;
    int length;
    switch (tag & 7) {
      case 0:
        if (!in_.ReadVarint64(&number)) return false;
        PutVarint64(to, number);
        return true;
      case 1:
        if (!in_.ReadLittleEndian64(&number)) return false;
        PutFixed64(to, number);
        return true;
      case 2:
        if (!ReadLength(&length)) return false;
        PutVarint64(to, static_cast<uint64_t>(length));
        return CopyBytes(length, to);
      case 5:
        if (!in_.ReadLittleEndian32(&small)) return false;
        PutFixed32(to, small);
        return true;
      default:
        return false;  // a group
    }
  }

  bool CopyBytes(int size, std::string* to) {
    while (size > 0) {
      const int n = std::min(size, kPieceBytes);
      const size_t at = to->size();
      to->resize(at + static_cast<size_t>(n));
      if (!in_.ReadRaw(to->data() + at, n)) return false;
      size -= n;
    }
    return true;
  }

  FileStream stream_;
  CodedInputStream in_;
  LargeConstants* constants_ = nullptr;  // of the meta graph that is being read
  std::string node_;                     // kept for its memory
  std::vector<Content> contents_;
};

}  // namespace

std::optional<ModelInPieces> ReadModelInPieces(FileSystem* fs, const std::string& path) {
  const StatusOr<std::unique_ptr<RandomAccessFile>> file = fs->NewRandomAccessFile(path);
  if (!file.ok()) return std::nullopt;
  const uint64_t size = (*file)->size();
  // Protobuf's limit for one message.
  if (size > static_cast<uint64_t>(std::numeric_limits<int>::max())) return std::nullopt;
  ModelInPieces model;
  PieceReader reader(file->get());
  if (!reader.ReadModel(static_cast<int>(size), &model)) return std::nullopt;
  return model;
}

Status ImportWithConstants(const tensorflow::GraphDef& def, const LargeConstants& constants,
                           Graph* graph) {
  tensorflow::GraphDef plain = def;
  // No content means zeros, of which a body makes no large tensor.
  for (NodeDef& node : *plain.mutable_node()) {
    if (!constants.contains(node.name())) continue;
    const auto value = node.mutable_attr()->find(kValueAttr);
    if (value != node.mutable_attr()->end()) {
      value->second.mutable_tensor()->clear_tensor_content();
    }
  }
  MR_RETURN_IF_ERROR(ImportGraphDef(std::move(plain), {}, graph));
  for (const auto& [name, value] : constants) {
    Node* const node = graph->FindNode(name);
    if (node == nullptr || !node->is_const()) {
      return Internal("a constant must be a Const of the graph, got '", name, "'");
    }
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const NodeBody> body,
                        graph->bodies()->MakeConst(node->body()->def(), value));
    MR_RETURN_IF_ERROR(graph->ReplaceBody(node, std::move(body)));
  }
  return absl::OkStatus();
}

}  // namespace millrace

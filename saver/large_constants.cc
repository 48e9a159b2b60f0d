// SPDX-License-Identifier: Apache-2.0
#include "saver/large_constants.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/coding.h"
#include "core/dtype.h"
#include "core/paced_thread.h"
#include "core/shape.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream.h"
#include "google/protobuf/message_lite.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/node_body.h"
#include "graph/verify.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
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
// By which a string grows whose length only the file says; what is longer is parsed at a low
// priority.
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

// A file may guess what comes behind it: no content of a file that begins so is read in pieces.
constexpr char kMarkPrefix[] = "elsewhere";

// Different from all others of this process.
std::string NextMark() {
  static std::atomic<uint64_t> next{1};  // relaxed: only distinct
  return absl::StrCat(kMarkPrefix,
                      absl::Hex(next.fetch_add(1, std::memory_order_relaxed), absl::kZeroPad16));
}

// A length of a fixed size, which readers take as any other: it is written behind what it is of.
constexpr size_t kLengthBytes = 5;
void SetLength(size_t length, char* to) {
  for (size_t i = 0; i < kLengthBytes; ++i, length >>= 7) {
    to[i] = static_cast<char>((length & 0x7f) | (i + 1 < kLengthBytes ? 0x80 : 0));
  }
}

// One long call has no pace points.
bool Merge(const std::string& bytes, google::protobuf::MessageLite* to) {
  bool is_read = false;
  const auto merge = [&] {
    is_read = to->MergeFromString(bytes);
    return absl::OkStatus();
  };
  (bytes.size() > static_cast<size_t>(kPieceBytes) ? AtLowPriority(merge) : merge()).IgnoreError();
  return is_read;
}

// The tensor that `value`, but for its content, and the bytes are; no value where a graph would not
// keep them as they are.
Tensor TensorOf(const tensorflow::TensorProto& value, const BufferRef& bytes) {
  tensorflow::TensorProto plain;
  plain.set_dtype(value.dtype());
  *plain.mutable_tensor_shape() = value.tensor_shape();
  plain.set_version_number(value.version_number());
  plain.set_tensor_content(value.tensor_content());
  // It has lists, too, or what this program does not know.
  if (plain.ByteSizeLong() != value.ByteSizeLong()) return Tensor();
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
           Merge(rest, &out->model);
  }

 private:
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
           Merge(rest, meta);
  }

  bool ReadGraph(tensorflow::GraphDef* graph) {
    int size;
    std::string rest;
    return ReadLength(&size) &&
           Fields(size,
                  [&](uint32_t tag) {
                    switch (tag) {
                      case TagOf(tensorflow::GraphDef::kNodeFieldNumber):
                        return ReadNode(graph->add_node());
                      case TagOf(tensorflow::GraphDef::kLibraryFieldNumber):
                        return ReadFunctions(graph->mutable_library());
                      default:
                        return CopyField(tag, &rest);
                    }
                  }) &&
           Merge(rest, graph);
  }

  // Straight into the message, for they may be large.
  bool ReadFunctions(tensorflow::FunctionDefLibrary* library) {
    int size;
    if (!ReadLength(&size)) return false;
    const CodedInputStream::Limit outer = in_.PushLimit(size);
    if (!library->MergeFromCodedStream(&in_) || !in_.ConsumedEntireMessage()) return false;
    in_.PopLimit(outer);
    return true;
  }

  bool ReadNode(NodeDef* node) {
    int size;
    if (!ReadLength(&size)) return false;
    node_.clear();
    contents_.clear();
    const bool is_read = static_cast<size_t>(size) < kLargeConstantBytes
                             ? CopyBytes(size, &node_)
                             : CopyMessage(size, 0, &node_);
    if (!is_read || !Merge(node_, node)) return false;
    if (node_.capacity() > static_cast<size_t>(kPieceBytes)) std::string().swap(node_);
    if (!contents_.empty()) GiveContents(node);
    return true;
  }

  // Constants become tensors, other contents go where their marks are. A mark without a place is of
  // a content that the file itself replaces by a later one.
  void GiveContents(NodeDef* node) {
    for (auto& [name, attr] : *node->mutable_attr()) {
      if (attr.value_case() != tensorflow::AttrValue::kTensor) continue;
      const auto content = contents_.find(attr.tensor().tensor_content());
      if (content == contents_.end()) continue;
      const BufferRef bytes = std::move(content->second);
      contents_.erase(content);
      if (name == kValueAttr && NodeBody::KindOf(node->op()) == NodeBody::Kind::kConst) {
        Tensor value = TensorOf(attr.tensor(), bytes);
        // A second node of a name is an error of the import.
        if (value.has_value() && constants_->emplace(node->name(), std::move(value)).second) {
          continue;
        }
      }
      attr.mutable_tensor()->mutable_tensor_content()->assign(
          static_cast<const char*>(bytes->data()), bytes->size());
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
      PutVarint32(to, tag);
      const size_t begin = to->size() + kLengthBytes;
      to->resize(begin);
      if (!(step == kContent ? CopyContent(length, to) : CopyMessage(length, step + 1, to))) {
        return false;
      }
      SetLength(to->size() - begin, to->data() + begin - kLengthBytes);
      return true;
    });
  }

  // Or a mark for it.
  bool CopyContent(int length, std::string* to) {
    if (static_cast<size_t>(length) < kLargeConstantBytes) {
      const size_t begin = to->size();
      return CopyBytes(length, to) &&
             !absl::StartsWith(absl::string_view(*to).substr(begin), kMarkPrefix);
    }
    const BufferRef bytes = Buffer::Allocate(DefaultAllocator(), static_cast<size_t>(length));
    if (!bytes || !in_.ReadRaw(bytes->data(), length)) return false;
    std::string mark = NextMark();
    to->append(mark);
    contents_.emplace(std::move(mark), bytes);
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
    // The file is this long.
    if (size > kPieceBytes) to->reserve(to->size() + static_cast<size_t>(size));
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
  // Large ones of that node, by their marks.
  std::map<std::string, BufferRef> contents_;
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
  IncomingNodes nodes;
  nodes.def = &def;
  nodes.constants = &constants;
  nodes.indices.resize(static_cast<size_t>(def.node_size()));
  std::iota(nodes.indices.begin(), nodes.indices.end(), 0);
  MR_RETURN_IF_ERROR(ImportNodes(&nodes, {}, graph));
  for (const auto& [name, value] : constants) {
    const Node* const node = graph->FindNode(name);
    if (node == nullptr || !node->is_const()) {
      return Internal("a constant must be a Const of the graph, got '", name, "'");
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace

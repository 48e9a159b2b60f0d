// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_TENSOR_CODING_H_
#define MILLRACE_NET_TENSOR_CODING_H_

// Tensor coding: messages whose tensors travel as raw slices instead of through TensorProto.
//
// The bytes are those of the protobuf messages (RunGraphRequest, RecvTensorResponse, ...): every
// protobuf implementation can read and write them. Only the way there differs: the elements of a
// tensor are a slice of their own that refers to the tensor's buffer, and on arrival they are
// copied once, straight into a tensor's buffer, or not at all when they lie together and aligned.
// Strings, handles and variants, which have no raw form, go through TensorProto; all others are
// written and read without a protobuf object or a string of their own. The packed lists of floats,
// doubles and complex numbers are the same bytes as raw content: they travel as that.
//
// Sizes in a message are checked against the message before anything is allocated. A TensorProto
// may list fewer elements than it has (the last one repeats): what is not listed is counted first,
// over the whole message, and bounded.
//
// Thread-safety: functions from any thread; a MessageWriter belongs to one thread.
// Failure: InvalidArgument when bytes are no such message; ResourceExhausted for a message above
// 2 GiB, gRPC's limit, and when there is no memory.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/tensor.h"

namespace google::protobuf {
class MessageLite;
}
namespace grpc {
class ByteBuffer;
class Slice;
}  // namespace grpc

namespace millrace {

// Tensors and messages of fewer bytes are copied into the slice before them: at 1 KiB a slice of
// their own costs as much, at 4 KiB much less (transport_benchmark, BM_PullMany and BM_WriteMany).
inline constexpr int64_t kMinBytesByReference = 1024;
// The largest message, both ways.
inline constexpr int64_t kMaxMessageBytes = INT32_MAX;
// Of elements that a message's tensors do not list, where its receiver says nothing.
inline constexpr int64_t kMaxSplatBytes = int64_t{32} << 20;

// Where the elements of a tensor stand in its TensorProto.
enum class TensorForm {
  kContent,     // as raw content; strings, handles and variants in their lists
  kListed,      // in the list of the dtype, as servers of TensorFlow reply (TensorToListedProto)
  kAllContent,  // as raw content, strings, too (TensorToContentProto)
};

class MessageWriter {
 public:
  MessageWriter();
  ~MessageWriter();
  MessageWriter(const MessageWriter&) = delete;
  MessageWriter& operator=(const MessageWriter&) = delete;

  // The fields of `message` (which leaves out those written with the other functions).
  void AddMessage(const google::protobuf::MessageLite& message);
  // Field `field` is a TensorProto.
  Status AddTensor(int field, const Tensor& tensor);
  // Field `field` is a message { 1: name or index, 2: TensorProto, 3: is_dead }; a dead tensor has
  // neither value nor field 2.
  // NamedTensorProto and the entries of a map of tensors are of this form.
  Status AddNamedTensor(int field, absl::string_view name, const Tensor& tensor,
                        TensorForm form = TensorForm::kContent);
  Status AddIndexedTensor(int field, uint64_t index, const Tensor& tensor, bool is_dead);

  int64_t num_bytes() const { return num_bytes_; }
  // ResourceExhausted above kMaxMessageBytes. The writer is empty afterwards. To move a ByteBuffer
  // is to copy it, slice by slice: senders use it where it is.
  StatusOr<grpc::ByteBuffer> Finish();

 private:
  struct Encoded;
  // Field `field` is a message of `num_bytes`, which follow.
  void BeginField(int field, size_t num_bytes);
  void PutTensor(const Tensor& tensor, const Encoded& encoded);
  void Flush();

  std::string pending_;  // bytes after the last slice
  std::vector<grpc::Slice> slices_;
  int64_t num_bytes_ = 0;
};

// What AddTensor, AddNamedTensor or AddIndexedTensor wrote.
struct DecodedTensor {
  std::string name;
  uint64_t index = 0;
  bool is_dead = false;
  Tensor value;  // no value when the message had none
};

// A message without tensors. ResourceExhausted above kMaxMessageBytes.
StatusOr<grpc::ByteBuffer> EncodeMessage(const google::protobuf::MessageLite& message);

enum class TensorField { kTensor, kNamedOrIndexed };

// Reads a message: fields number `field` (0: none) are tensors of the given form and go to
// `tensors`, all others are merged into `rest`. `what` names the message in errors. Elements that
// the tensors do not list may have `max_splat_bytes`: ResourceExhausted, which says that servers'
// bound is ServerLimits::max_splat_bytes. More than `max_tensors` are no such message: a
// DecodedTensor takes a hundred bytes, on the wire it may be two.
Status DecodeMessage(absl::string_view what, const grpc::ByteBuffer& buffer, int field,
                     TensorField form, std::vector<DecodedTensor>* tensors,
                     google::protobuf::MessageLite* rest, int64_t max_splat_bytes = kMaxSplatBytes,
                     size_t max_tensors = SIZE_MAX);
Status DecodeMessage(absl::string_view what, const grpc::ByteBuffer& buffer,
                     google::protobuf::MessageLite* rest);

// Bytes of a message where they were received, in their order.
struct ReceivedBytes {
  std::vector<absl::string_view> pieces;
  uint64_t size = 0;  // of all
};
// Reads a message but for its fields number `field`, which are bytes: they are not copied, but go
// to `fields` and lie in `slices`, whose elements must live as long. All others are merged into
// `rest`. More than 4,096 fields are no such message.
Status DecodeMessageAround(absl::string_view what, const grpc::ByteBuffer& buffer, int field,
                           std::vector<grpc::Slice>* slices, std::vector<ReceivedBytes>* fields,
                           google::protobuf::MessageLite* rest);

// `text` with bytes that are no UTF-8 written as \xNN. Protobuf refuses a whole message for such a
// byte in a `string` field, and messages of errors may quote any input.
std::string WireText(absl::string_view text);

// What happened to the bytes of tensors in this process so far; for tests and benchmarks.
struct TensorCodingCounters {
  int64_t sent_by_reference = 0;  // bytes
  int64_t sent_copied = 0;        // small tensors, strings
  int64_t received_in_place = 0;
  int64_t received_copied = 0;  // once each
  int64_t through_proto = 0;    // tensors, not bytes
};
TensorCodingCounters GetTensorCodingCounters();

}  // namespace millrace

#endif  // MILLRACE_NET_TENSOR_CODING_H_

// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/grpc_wire.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"

namespace millrace {
namespace {

// A slice that keeps an owner takes two allocations and its end another thread's caches; copies of
// as much are cheaper.
constexpr size_t kMaxCopiedBytes = 512;

using KeptChain = std::shared_ptr<const ByteChain>;

// The bytes of a piece of `chain`, which stays until gRPC has dropped them.
grpc::Slice SliceOf(const KeptChain& chain, absl::string_view bytes) {
  if (bytes.size() <= kMaxCopiedBytes) return grpc::Slice(bytes.data(), bytes.size());
  auto kept = std::make_unique<KeptChain>(chain);
  grpc::Slice slice(
      const_cast<char*>(bytes.data()), bytes.size(),
      [](void* data) { delete static_cast<KeptChain*>(data); }, kept.get());
  kept.release();
  return slice;
}

grpc::ByteBuffer MessageOf(ByteChain bytes) {
  const auto chain = std::make_shared<const ByteChain>(std::move(bytes));
  std::vector<grpc::Slice> slices;
  slices.reserve(chain->pieces().size());
  for (const ByteChain::Piece& piece : chain->pieces()) {
    slices.push_back(SliceOf(chain, piece.bytes()));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Gives a wire's user what its call hears.
class WireCallUser : public DuplexCall::User {
 public:
  explicit WireCallUser(std::shared_ptr<ByteWire::User> user) : user_(std::move(user)) {}

  void OnMessage(const grpc::ByteBuffer& message) override {
    std::vector<grpc::Slice> slices;
    const grpc::Status dumped = message.Dump(&slices);
    if (!dumped.ok()) return;  // without bytes
    for (const grpc::Slice& slice : slices) {
      user_->OnBytes(absl::string_view(reinterpret_cast<const char*>(slice.begin()), slice.size()));
    }
  }
  void OnWritten() override { user_->OnWritten(); }
  void OnEnded(const Status& status, bool by_peer) override {
    user_->OnClosed(Explained(status), by_peer);
  }

 private:
  static Status Explained(const Status& status) {
    if (!absl::IsUnimplemented(status)) return status;
    return FailedPrecondition("the task must have links (", kLinkMethod,
                              "), got: ", status.message(),
                              "; is it a Millrace task of the same release?");
  }

  const std::shared_ptr<ByteWire::User> user_;
};

class GrpcWire : public ByteWire {
 public:
  explicit GrpcWire(std::shared_ptr<DuplexCall> call) : call_(std::move(call)) {}

  void Start(std::shared_ptr<User> user) override {
    call_->Start(std::make_shared<WireCallUser>(std::move(user)));
  }
  // Always hears of it: until then gRPC has the message.
  bool Write(ByteChain bytes) override {
    call_->Write(MessageOf(std::move(bytes)));
    return false;
  }
  // The windows of HTTP/2, and two buffers of TCP.
  bool takes_megabytes() const override { return true; }
  void Close() override { call_->Close(); }

 private:
  const std::shared_ptr<DuplexCall> call_;
};

}  // namespace

std::unique_ptr<ByteWire> DialGrpcWire(RpcChannel* channel) {
  return std::make_unique<GrpcWire>(channel->Duplex(kLinkMethod));
}

std::unique_ptr<ByteWire> AcceptGrpcWire(std::shared_ptr<DuplexCall> call) {
  return std::make_unique<GrpcWire>(std::move(call));
}

}  // namespace millrace

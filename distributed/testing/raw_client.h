// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_RAW_CLIENT_H_
#define MILLRACE_DISTRIBUTED_TESTING_RAW_CLIENT_H_

// RawClient: a gRPC client that shares no code with our own: any method, any bytes, any
// metadata. What a stub of another program sends, and what a stranger may.
//
// Thread-safety: one thread at a time. Failure: gRPC's own status; a call ends after 30 s, or as
// SetTimeout says.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/message_lite.h"

namespace millrace {

class RawClient {
 public:
  explicit RawClient(
      const std::string& address,
      std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials())
      : stub_(grpc::CreateChannel(address, std::move(credentials))) {}

  // Sent with each call from now on.
  void SetMetadata(std::map<std::string, std::string> metadata) { metadata_ = std::move(metadata); }
  // Of each call from now on.
  void SetTimeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

  grpc::Status Call(const std::string& method, const std::string& request,
                    std::string* answer = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout_);
    for (const auto& [key, value] : metadata_) context.AddMetadata(key, value);
    const grpc::Slice slice(request);
    grpc::CompletionQueue queue;
    auto call = stub_.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, this);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    std::vector<grpc::Slice> slices;
    if (answer != nullptr && status.ok() && response.Dump(&slices).ok()) {
      answer->clear();
      for (const grpc::Slice& s : slices) {
        answer->append(reinterpret_cast<const char*>(s.begin()), s.size());
      }
    }
    return status;
  }
  grpc::Status Call(const std::string& method, const google::protobuf::MessageLite& request,
                    google::protobuf::MessageLite* response) {
    std::string answer;
    const grpc::Status status = Call(method, request.SerializeAsString(), &answer);
    if (status.ok() && !response->ParseFromString(answer)) {
      return grpc::Status(grpc::StatusCode::INTERNAL, "the answer must be of the method's type");
    }
    return status;
  }

 private:
  grpc::GenericStub stub_;
  std::map<std::string, std::string> metadata_;
  std::chrono::milliseconds timeout_ = std::chrono::seconds(30);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_RAW_CLIENT_H_

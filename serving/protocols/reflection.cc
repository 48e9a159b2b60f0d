// SPDX-License-Identifier: Apache-2.0
#include "serving/protocols/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/exceptions.h"
#include "net/tensor_coding.h"
#include "proto/reflection/v1.pb.h"
#include "proto/reflection/v1alpha.pb.h"

namespace millrace {
namespace {

namespace wire = grpc::reflection::v1;  // v1alpha has the same bytes

using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;
using ::google::protobuf::FileDescriptorProto;
using ::google::protobuf::ServiceDescriptor;

// gRPC's codes.
constexpr int kInvalidArgument = 3;
constexpr int kNotFound = 5;

void Refuse(int code, std::string message, wire::ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(code);
  response->mutable_error_response()->set_error_message(std::move(message));
}

}  // namespace

struct OfferedSchemas::Sent {
  std::set<const FileDescriptor*> files;
};

struct OfferedSchemas::Impl {
  const DescriptorPool* pool;
  std::vector<std::string> services;
  // Serialized, as clients get them.
  std::map<const FileDescriptor*, std::string> files;

  // With all that it imports.
  void Offer(const FileDescriptor* file) {
    std::vector<const FileDescriptor*> open = {file};
    while (!open.empty()) {
      const FileDescriptor* const next = open.back();
      open.pop_back();
      if (files.contains(next)) continue;
      FileDescriptorProto proto;
      next->CopyTo(&proto);
      files[next] = proto.SerializeAsString();
      for (int i = 0; i < next->dependency_count(); ++i) open.push_back(next->dependency(i));
    }
  }
  const FileDescriptor* Offered(const FileDescriptor* file) const {
    return file != nullptr && files.contains(file) ? file : nullptr;
  }
  const Descriptor* OfferedMessage(const std::string& name) const {
    const Descriptor* const message = pool->FindMessageTypeByName(name);
    return message != nullptr && Offered(message->file()) != nullptr ? message : nullptr;
  }

  void AddFiles(const FileDescriptor* file, Sent* sent, wire::FileDescriptorResponse* out) const {
    std::deque<const FileDescriptor*> open = {file};
    std::set<const FileDescriptor*> seen;
    while (!open.empty()) {
      const FileDescriptor* const next = open.front();
      open.pop_front();
      if (!seen.insert(next).second) continue;
      // The one that was asked for comes in any case.
      if (sent->files.insert(next).second || next == file) {
        out->add_file_descriptor_proto(files.at(next));
      }
      for (int i = 0; i < next->dependency_count(); ++i) open.push_back(next->dependency(i));
    }
  }
};

OfferedSchemas::OfferedSchemas(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
OfferedSchemas::~OfferedSchemas() = default;

std::shared_ptr<OfferedSchemas::Sent> OfferedSchemas::NothingSent() {
  return std::make_shared<Sent>();
}

StatusOr<std::shared_ptr<const OfferedSchemas>> OfferedSchemas::Make(
    const DescriptorPool* pool, std::vector<std::string> services) {
  auto impl = std::make_unique<Impl>();
  impl->pool = pool;
  for (const std::string& name : services) {
    const ServiceDescriptor* const service = pool->FindServiceByName(name);
    if (service == nullptr) {
      return absl::NotFoundError(absl::StrCat(
          "Reflection: the program must have the schema of each service, got none of ", name));
    }
    impl->Offer(service->file());
  }
  std::sort(services.begin(), services.end());
  impl->services = std::move(services);
  return std::shared_ptr<const OfferedSchemas>(new OfferedSchemas(std::move(impl)));
}

void OfferedSchemas::Answer(const wire::ServerReflectionRequest& request, Sent* sent,
                            wire::ServerReflectionResponse* response) const {
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  const auto give = [&](const FileDescriptor* file, absl::string_view what) {
    if (file == nullptr) {
      return Refuse(kNotFound, absl::StrCat("Reflection: ", what, " is not offered here"),
                    response);
    }
    impl_->AddFiles(file, sent, response->mutable_file_descriptor_response());
  };
  switch (request.message_request_case()) {
    case wire::ServerReflectionRequest::kListServices:
      for (const std::string& name : impl_->services) {
        response->mutable_list_services_response()->add_service()->set_name(name);
      }
      return;
    case wire::ServerReflectionRequest::kFileByFilename: {
      const std::string& name = request.file_by_filename();
      return give(impl_->Offered(impl_->pool->FindFileByName(name)),
                  absl::StrCat("file '", name, "'"));
    }
    case wire::ServerReflectionRequest::kFileContainingSymbol: {
      const std::string& name = request.file_containing_symbol();
      return give(impl_->Offered(impl_->pool->FindFileContainingSymbol(name)),
                  absl::StrCat("symbol '", name, "'"));
    }
    case wire::ServerReflectionRequest::kFileContainingExtension: {
      const wire::ExtensionRequest& asked = request.file_containing_extension();
      const Descriptor* const message = impl_->OfferedMessage(asked.containing_type());
      const FieldDescriptor* const extension =
          message == nullptr
              ? nullptr
              : impl_->pool->FindExtensionByNumber(message, asked.extension_number());
      return give(extension == nullptr ? nullptr : impl_->Offered(extension->file()),
                  absl::StrCat("extension ", asked.extension_number(), " of '",
                               asked.containing_type(), "'"));
    }
    case wire::ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const std::string& name = request.all_extension_numbers_of_type();
      const Descriptor* const message = impl_->OfferedMessage(name);
      if (message == nullptr) return give(nullptr, absl::StrCat("type '", name, "'"));
      std::vector<const FieldDescriptor*> extensions;
      impl_->pool->FindAllExtensions(message, &extensions);
      auto* const numbers = response->mutable_all_extension_numbers_response();
      numbers->set_base_type_name(message->full_name());
      for (const FieldDescriptor* extension : extensions) {
        if (impl_->Offered(extension->file()) == nullptr) continue;
        numbers->add_extension_number(extension->number());
      }
      return;
    }
    case wire::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  Refuse(kInvalidArgument, "Reflection: a request must ask for something, got none of its fields",
         response);
}

// One call. Each request is heard when the answer to the one before has left.
class ReflectionService::Conversation : public DuplexCall::User {
 public:
  Conversation(std::shared_ptr<ReflectionService> service, std::shared_ptr<DuplexCall> call)
      : service_(std::move(service)), call_(std::move(call)) {}

  void OnMessage(const grpc::ByteBuffer& message) override {
    if (message.Length() > kMaxRequestBytes) return call_->Close();
    wire::ServerReflectionRequest request;
    if (!DecodeMessage(request.GetTypeName(), message, &request).ok()) return call_->Close();
    const StatusOr<grpc::ByteBuffer> answer =
        NoExceptions("Reflection", [&]() -> StatusOr<grpc::ByteBuffer> {
          wire::ServerReflectionResponse response;
          service_->schemas_->Answer(request, sent_.get(), &response);
          return EncodeMessage(response);
        });
    if (!answer.ok()) return call_->Close();
    call_->Write(*answer);
  }
  void OnWritten() override {}
  bool takes_turns() const override { return true; }
  void OnEnded(const Status&, bool) override {
    MutexLock lock(&service_->mu_);
    has_ended_ = true;
    service_->open_.erase(this);
  }
  void Close() { call_->Close(); }
  // Under the service's lock.
  bool has_ended() const { return has_ended_; }

 private:
  const std::shared_ptr<ReflectionService> service_;
  const std::shared_ptr<DuplexCall> call_;
  const std::shared_ptr<OfferedSchemas::Sent> sent_ = OfferedSchemas::NothingSent();
  bool has_ended_ = false;  // by the service's lock
};

StatusOr<std::shared_ptr<ReflectionService>> ReflectionService::Create(
    std::vector<std::string> services) {
  // Named, so that both schemas are linked.
  for (const Descriptor* request :
       {wire::ServerReflectionRequest::descriptor(),
        grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()}) {
    services.push_back(request->file()->service(0)->full_name());
  }
  MR_ASSIGN_OR_RETURN(auto schemas,
                      OfferedSchemas::Make(DescriptorPool::generated_pool(), std::move(services)));
  return std::shared_ptr<ReflectionService>(new ReflectionService(std::move(schemas)));
}

std::map<std::string, std::function<void(std::shared_ptr<DuplexCall>)>>
ReflectionService::DuplexHandlers() {
  std::map<std::string, std::function<void(std::shared_ptr<DuplexCall>)>> handlers;
  for (const char* package : {"v1", "v1alpha"}) {
    handlers[absl::StrCat("/grpc.reflection.", package, ".ServerReflection/ServerReflectionInfo")] =
        [self = shared_from_this()](std::shared_ptr<DuplexCall> call) {
          self->Begin(std::move(call));
        };
  }
  return handlers;
}

void ReflectionService::Begin(std::shared_ptr<DuplexCall> call) {
  auto conversation = std::make_shared<Conversation>(shared_from_this(), call);
  call->Start(conversation);
  bool is_refused;
  {
    // Not before the start: Stop would close what has not begun.
    MutexLock lock(&mu_);
    is_refused = stopped_ || open_.size() >= kMaxCalls;
    if (!is_refused && !conversation->has_ended()) open_[conversation.get()] = conversation;
  }
  if (is_refused) call->Close();
}

void ReflectionService::Stop() {
  std::vector<std::shared_ptr<Conversation>> open;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    for (const auto& [key, conversation] : open_) {
      if (auto one = conversation.lock()) open.push_back(std::move(one));
    }
  }
  for (const auto& conversation : open) conversation->Close();
}

}  // namespace millrace

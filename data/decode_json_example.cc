// SPDX-License-Identifier: Apache-2.0
#include "data/decode_json_example.h"

#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver.h>
#include <google/protobuf/util/type_resolver_util.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "data/example_batch.h"
#include "formats/json_nesting.h"
#include "proto/example.pb.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

constexpr double kExampleNs = 10000;

class DecodeJSONExampleKernel : public RuledKernel<UnchangedShapeRule> {
 protected:
  Status Prepare(KernelConstruction*) override {
    resolver_.reset(google::protobuf::util::NewTypeResolverForDescriptorPool(
        "type.googleapis.com", tensorflow::Example::descriptor()->file()->pool()));
    return absl::OkStatus();
  }

  Status Run(KernelContext* ctx) const override {
    const absl::Span<const std::string> texts = ctx->input(0).raw<std::string>();
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
    const absl::Span<std::string> out = output->mutable_raw<std::string>();
    FirstError error;
    ctx->ParallelFor(static_cast<int64_t>(texts.size()), kExampleNs,
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end && i < error.limit(); ++i) {
                         const size_t at = static_cast<size_t>(i);
                         Status status = Decode(texts[at], &out[at]);
                         if (status.ok()) continue;
                         error.Report(i, InvalidArgument("Error while parsing JSON in element ", i,
                                                         ": ", status.message()));
                       }
                     });
    return error.status();
  }

 private:
  Status Decode(const std::string& text, std::string* bytes) const {
    // The parser calls itself for what is nested.
    if (const int nesting = JsonNesting(text); nesting > kMaxJsonNesting) {
      return InvalidArgument("it must be nested at most ", kMaxJsonNesting, " deep, got ", nesting);
    }
    const auto status = google::protobuf::util::JsonToBinaryString(
        resolver_.get(), "type.googleapis.com/tensorflow.Example", text, bytes);
    if (status.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        std::string(status.message().data(), status.message().size()));
  }

  std::unique_ptr<google::protobuf::util::TypeResolver> resolver_;
};

const OpRegistration kDecodeJSONExample =
    OpSpec("DecodeJSONExample", "json_examples: string -> binary_examples: string")
        .With(KernelFor<DecodeJSONExampleKernel>())
        .NotDifferentiable();

}  // namespace
}  // namespace millrace

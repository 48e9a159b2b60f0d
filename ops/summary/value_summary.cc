// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/value_summary.h"

#include <climits>
#include <cmath>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "core/histogram.h"
#include "core/tensor_proto.h"
#include "proto/summary.pb.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using tensorflow::Summary;

template <typename T>
double NumberOf(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return static_cast<double>(ToFloat(value));
  } else {
    return static_cast<double>(value);
  }
}

// take(number) for each element, until one is not OK.
template <typename... Ts, typename Take>
Status ForEachOf(const Tensor& tensor, const Take& take) {
  Status status;
  const auto visit = [&]<typename T>() {
    if (tensor.dtype() != DTypeOf<T>) return false;
    for (const T& value : tensor.raw<T>()) {
      status = take(NumberOf(value));
      if (!status.ok()) break;
    }
    return true;
  };
  const bool visited = (visit.template operator()<Ts>() || ...);
  return visited ? status : Internal("summaries have no loop for ", tensor.dtype());
}
template <typename Take>
Status ForEachNumber(const Tensor& tensor, const Take& take) {
  return ForEachOf<float, double, int32_t, int64_t, uint8_t, Half, Bfloat16, int8_t, int16_t,
                   uint16_t, uint32_t, uint64_t>(tensor, take);
}

Status CheckScalar(RuleContext* c, int i, absl::string_view name) {
  return c->InputWithRank(i, 0, name).status();
}

Status Return(KernelContext* ctx, const Summary& summary) {
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  if (!summary.SerializeToString(output->mutable_raw<std::string>().data())) {
    return absl::ResourceExhaustedError("a summary must be smaller than 2 GiB, got more");
  }
  return absl::OkStatus();
}

// --- ScalarSummary -------------------------------------------------------------------------------

struct ScalarSummaryRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    if (!c->input(0).IsCompatibleWith(c->input(1))) {
      return InvalidArgument("tags and values must have one shape, got ", c->input(0), " and ",
                             c->input(1));
    }
    return PartialShape::Scalar();
  }
};

Status RunScalarSummary(KernelContext* ctx, const ScalarSummaryRule&) {
  Summary summary;
  for (const std::string& tag : ctx->input(0).raw<std::string>()) summary.add_value()->set_tag(tag);
  int i = 0;
  MR_RETURN_IF_ERROR(ForEachNumber(ctx->input(1), [&](double value) {
    summary.mutable_value(i++)->set_simple_value(static_cast<float>(value));
    return absl::OkStatus();
  }));
  return Return(ctx, summary);
}

const OpRegistration kScalarSummary =
    OpSpec("ScalarSummary", "tags: string, values: T -> summary: string", "T: realnumbertype")
        .With(RuledKernelFor<ScalarSummaryRule>(RunScalarSummary))
        .NotDifferentiable();

// --- HistogramSummary ----------------------------------------------------------------------------

struct HistogramSummaryRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(CheckScalar(c, 0, "tag"));
    return PartialShape::Scalar();
  }
};

Status RunHistogramSummary(KernelContext* ctx, const HistogramSummaryRule&) {
  Histogram histogram;
  MR_RETURN_IF_ERROR(ForEachNumber(ctx->input(1), [&](double value) -> Status {
    if (std::isnan(value)) {
      return InvalidArgument("Nan in summary histogram for: ", ctx->node_name());
    }
    if (std::isinf(value)) {
      return InvalidArgument("Infinity in summary histogram for: ", ctx->node_name());
    }
    histogram.Add(value);
    return absl::OkStatus();
  }));
  Summary summary;
  Summary::Value* value = summary.add_value();
  value->set_tag(ctx->input(0).raw_scalar<std::string>());
  histogram.WriteTo(value->mutable_histo());
  return Return(ctx, summary);
}

const OpRegistration kHistogramSummary =
    OpSpec("HistogramSummary", "tag: string, values: T -> summary: string",
           "T: realnumbertype = DT_FLOAT")
        .With(RuledKernelFor<HistogramSummaryRule>(RunHistogramSummary))
        .NotDifferentiable();

// --- MergeSummary --------------------------------------------------------------------------------

struct MergeSummaryRule {
  StatusOr<PartialShape> operator()(RuleContext*) const { return PartialShape::Scalar(); }
};

Status RunMergeSummary(KernelContext* ctx, const MergeSummaryRule&) {
  Summary merged;
  std::set<std::string> tags;
  for (int i = 0; i < ctx->num_inputs(); ++i) {
    for (const std::string& bytes : ctx->input(i).raw<std::string>()) {
      Summary summary;
      if (bytes.size() > INT_MAX || !summary.ParseFromString(bytes)) {
        return InvalidArgument("inputs[", i, "] must be a serialized Summary message, got ",
                               bytes.size(), " bytes that are none");
      }
      for (Summary::Value& value : *summary.mutable_value()) {
        // What TensorSummary makes has no tag.
        if (!value.tag().empty() && !tags.insert(value.tag()).second) {
          return InvalidArgument("Duplicate tag ", value.tag(), " found in summary inputs");
        }
        *merged.add_value() = std::move(value);
      }
    }
  }
  return Return(ctx, merged);
}

const OpRegistration kMergeSummary =
    OpSpec("MergeSummary", "inputs: N * string -> summary: string", "N: int >= 1")
        .With(RuledKernelFor<MergeSummaryRule>(RunMergeSummary))
        .NotDifferentiable();

// --- TensorSummary -------------------------------------------------------------------------------

struct TensorSummaryRule {
  StatusOr<PartialShape> operator()(RuleContext*) const { return PartialShape::Scalar(); }
};

Status RunTensorSummary(KernelContext* ctx, const TensorSummaryRule&) {
  Summary summary;
  Summary::Value* value = summary.add_value();
  value->set_node_name(ctx->node_name());
  MR_RETURN_IF_ERROR(TensorToProto(ctx->input(0), value->mutable_tensor()));
  return Return(ctx, summary);
}

const OpRegistration kTensorSummary =
    OpSpec("TensorSummary", "tensor: T -> summary: string",
           "T: type; description: string = ''; labels: list(string) = []; "
           "display_name: string = ''")
        .With(RuledKernelFor<TensorSummaryRule>(RunTensorSummary))
        .NotDifferentiable();

struct TensorSummaryV2Rule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(CheckScalar(c, 0, "tag"));
    MR_RETURN_IF_ERROR(CheckScalar(c, 2, "serialized_summary_metadata"));
    return PartialShape::Scalar();
  }
};

Status RunTensorSummaryV2(KernelContext* ctx, const TensorSummaryV2Rule&) {
  Summary summary;
  Summary::Value* value = summary.add_value();
  value->set_tag(ctx->input(0).raw_scalar<std::string>());
  const std::string& metadata = ctx->input(2).raw_scalar<std::string>();
  if (metadata.size() > INT_MAX || !value->mutable_metadata()->ParseFromString(metadata)) {
    return InvalidArgument(
        "serialized_summary_metadata must be a serialized SummaryMetadata message, got ",
        metadata.size(), " bytes that are none");
  }
  MR_RETURN_IF_ERROR(TensorToProto(ctx->input(1), value->mutable_tensor()));
  return Return(ctx, summary);
}

const OpRegistration kTensorSummaryV2 =
    OpSpec("TensorSummaryV2",
           "tag: string, tensor: T, serialized_summary_metadata: string -> summary: string",
           "T: type")
        .With(RuledKernelFor<TensorSummaryV2Rule>(RunTensorSummaryV2))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace

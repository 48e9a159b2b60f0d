// SPDX-License-Identifier: Apache-2.0
// Poolings: ops/loops/pool.h with the rules of ops/rules/window.h. Forwards, rows of the outputs
// run in parallel; backwards, where windows overlap, images (or channels of few images) do.
#include "ops/nn/pool.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/gradient.h"
#include "ops/array/reshape.h"
#include "ops/loops/pool.h"
#include "ops/rules/window.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::PoolLoops;
using math::PoolShape;

enum class Pass { kMax, kMaxGrad, kMaxGradGrad, kMean, kMeanGrad };

// --- Rules ---------------------------------------------------------------------------------------

// `shape`, the gradient or the output of a pooling, with what the pooling says of it.
StatusOr<PartialShape> MergePooled(absl::string_view name, const PartialShape& shape,
                                   const WindowGeometry& g) {
  MR_ASSIGN_OR_RETURN(const PartialShape pooled, g.OutputShape());
  StatusOr<PartialShape> merged = pooled.MergeWith(shape);
  if (!merged.ok()) return InvalidArgument(name, " must have shape ", pooled, ", got ", shape);
  return merged;
}

// The inputs are those that ops/nn/pool.h names.
template <Pass kPass>
struct PoolRule {
  // The input that gives ksize in V2 ops; strides are the next one and the last.
  static constexpr int kKsize = kPass == Pass::kMax ? 1 : 3;
  static constexpr bool kIsMean = kPass == Pass::kMean || kPass == Pass::kMeanGrad;

  std::string data_format;
  WindowAttrs window;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "data_format", &data_format));
    if (!kIsMean) {
      window.may_pool_depth = true;
      window.depth = WindowAxis();
    }
    return is_of_gpus() ? absl::OkStatus() : window.Init(attrs);
  }
  // [batch, channels / 4, rows, columns, 4]
  bool is_of_gpus() const { return data_format == "NCHW_VECT_C"; }

  StatusOr<Planned<WindowGeometry>> operator()(RuleContext* c) const {
    if (is_of_gpus()) return PartialShape::UnknownOfRank(5);
    WindowAttrs known = window;
    if (c->num_inputs() > kKsize) {
      MR_ASSIGN_OR_RETURN(const PartialInts ksize, c->IntVector(kKsize, "ksize"));
      MR_ASSIGN_OR_RETURN(const PartialInts strides, c->IntVector(kKsize + 1, "strides"));
      if (ksize.all_known()) {
        MR_RETURN_IF_ERROR(known.Set(&WindowAxis::size, "ksize", ksize.values()));
      }
      if (strides.all_known()) {
        MR_RETURN_IF_ERROR(known.Set(&WindowAxis::stride, "strides", strides.values()));
      }
    }
    if constexpr (kPass == Pass::kMeanGrad) {
      MR_ASSIGN_OR_RETURN(const PartialShape input, ImageSizesInput(c, 0, "orig_input_shape"));
      MR_ASSIGN_OR_RETURN(WindowGeometry g, SlidePool(known, input));
      MR_ASSIGN_OR_RETURN(const PartialShape grad, MergePooled("grad", c->input(1), g));
      // Batch and channels are those of the gradient.
      const ImageShape image = ToImageShape(grad, window.channels_first);
      g.input.batch = image.batch;
      g.input.channels = image.channels;
      return WithPlan(g.InputShape(), g);
    }
    PartialShape input = c->input(0);
    if constexpr (kPass == Pass::kMaxGradGrad) {
      const StatusOr<PartialShape> both = input.MergeWith(c->input(2));
      if (!both.ok()) {
        return InvalidArgument("grad must have the shape of orig_input ", input, ", got ",
                               c->input(2));
      }
      input = *both;
    }
    MR_ASSIGN_OR_RETURN(const WindowGeometry g, SlidePool(known, input));
    if constexpr (kPass == Pass::kMax || kPass == Pass::kMean) return WithPlan(g.OutputShape(), g);
    MR_ASSIGN_OR_RETURN(PartialShape output, MergePooled("orig_output", c->input(1), g));
    if constexpr (kPass == Pass::kMaxGradGrad) return WithPlan(output, g);
    MR_RETURN_IF_ERROR(MergePooled("grad", c->input(2), g).status());
    return WithPlan(c->InputWithRank(0, 4), g);
  }
};

// --- Kernels -------------------------------------------------------------------------------------

StatusOr<PoolShape> Checked(const PoolShape& s) {
  MR_ASSIGN_OR_RETURN(const int64_t pixels, CheckedProduct(s.in_rows, s.in_cols));
  if (pixels <= std::numeric_limits<int32_t>::max()) return s;
  return Unimplemented("an image must have less than 2^31 pixels, got ", pixels);
}

StatusOr<PoolShape> ToPoolShape(const WindowGeometry& g) {
  const auto& [rows, cols] = g.window.axes;
  PoolShape s;
  if (const int64_t window = g.window.depth.size; window > 1) {
    // Pixels are the rows of an image with one channel, whose columns are pooled.
    MR_ASSIGN_OR_RETURN(s.in_rows, CheckedProduct(g.input.size[0], g.input.size[1]));
    s.out_rows = s.in_rows;
    s.in_cols = g.input.channels;
    s.out_cols = g.output.channels;
    s.channels = 1;
    s.window_cols = s.stride_cols = window;
    return Checked(s);
  }
  s.in_rows = g.input.size[0];
  s.in_cols = g.input.size[1];
  s.channels = g.input.channels;
  s.out_rows = g.output.size[0];
  s.out_cols = g.output.size[1];
  s.window_rows = rows.size;
  s.window_cols = cols.size;
  s.stride_rows = rows.stride;
  s.stride_cols = cols.stride;
  s.pad_top = g.pad_before[0];
  s.pad_left = g.pad_before[1];
  return Checked(s);
}

// About how long one output element takes.
double ElementNs(const PoolShape& s) {
  return 0.1 + 0.15 * static_cast<double>(std::min(s.window_rows, s.in_rows)) *
                   static_cast<double>(std::min(s.window_cols, s.in_cols));
}

// f(image, begin, end) for output rows [begin, end) of each image.
template <typename F>
void ForOutputRows(KernelContext* ctx, const PoolShape& s, int64_t batch, F f) {
  const double row_ns = ElementNs(s) * static_cast<double>(s.out_cols * s.channels);
  ctx->ParallelFor(batch * s.out_rows, row_ns, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t image = begin / s.out_rows;
      const int64_t last = std::min(end, (image + 1) * s.out_rows);
      f(image, begin - image * s.out_rows, last - image * s.out_rows);
      begin = last;
    }
  });
}

// f(image, begin, end) for channels [begin, end) of each image: all, or 64 where images are few.
template <typename F>
void ForChannels(KernelContext* ctx, const PoolShape& s, int64_t batch, F f) {
  constexpr int64_t kManyImages = 16, kChannels = 64;
  const int64_t parts = batch >= kManyImages ? 1 : (s.channels + kChannels - 1) / kChannels;
  const double part_ns = 2 * ElementNs(s) *
                         static_cast<double>(s.out_rows * s.out_cols * s.channels) /
                         static_cast<double>(parts);
  ctx->ParallelFor(batch * parts, part_ns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i % parts;
      const int64_t from = parts == 1 ? 0 : part * kChannels;
      f(i / parts, from, part + 1 == parts ? s.channels : from + kChannels);
    }
  });
}

template <Pass kPass>
Status RunPool(KernelContext* ctx, const PoolRule<kPass>& rule) {
  if (rule.data_format != "NHWC") {
    return Unimplemented("data_format must be NHWC on CPU, got ", rule.data_format,
                         "; transpose the images");
  }
  constexpr bool kBackwards = kPass == Pass::kMaxGrad || kPass == Pass::kMeanGrad;
  const WindowGeometry& g = ctx->plan(rule);
  MR_ASSIGN_OR_RETURN(const PoolShape s, ToPoolShape(g));
  MR_ASSIGN_OR_RETURN(Tensor * result, ctx->AllocateOutput(0));
  if (result->num_elements() == 0) return absl::OkStatus();
  const PoolLoops& loops = *math::FindPool(result->dtype());
  // Bytes of an image, at the input and the output of the pooling.
  const int64_t pixel_size = s.channels * static_cast<int64_t>(DTypeSize(result->dtype()));
  const int64_t in_size = s.in_rows * s.in_cols * pixel_size;
  const int64_t out_size = s.out_rows * s.out_cols * pixel_size;
  const auto input = [&](int i, int64_t at) {
    return static_cast<const char*>(ctx->input(i).raw_data()) + at;
  };
  char* const to = static_cast<char*>(result->mutable_raw_data());
  const auto run = [&](int64_t image, int64_t begin, int64_t end) {
    const int64_t in = image * in_size, out = image * out_size;
    if constexpr (kPass == Pass::kMax) {
      loops.max(s, input(0, in), to + out, begin, end);
    } else if constexpr (kPass == Pass::kMaxGrad) {
      loops.max_gradient(s, input(0, in), input(2, out), to + in, begin, end);
    } else if constexpr (kPass == Pass::kMaxGradGrad) {
      loops.max_select(s, input(0, in), input(2, in), to + out, begin, end);
    } else if constexpr (kPass == Pass::kMean) {
      loops.mean(s, input(0, in), to + out, begin, end);
    } else {
      loops.mean_gradient(s, input(1, out), to + in, begin, end);
    }
  };
  if (kBackwards) {
    ForChannels(ctx, s, g.input.batch, run);
  } else {
    ForOutputRows(ctx, s, g.input.batch, run);
  }
  return absl::OkStatus();
}

// --- Gradients -----------------------------------------------------------------------------------

// `op` with the window of the node: ksize and strides are attrs or, of the V2 ops, inputs.
Output WithWindow(GradientContext* c, std::string op, std::initializer_list<Output> inputs) {
  const tensorflow::NodeDef& def = c->node().def();
  const bool is_v2 = !HasAttr(def, "ksize");
  NodeBuilder builder(c->scope(), is_v2 ? op + "V2" : op);
  for (const Output& input : inputs) builder.Input(input);
  for (int i = 2; is_v2 && i > 0; --i) builder.Input(c->input(c->num_inputs() - i));
  for (const char* name : {"ksize", "strides", "padding", "data_format"}) {
    if (HasAttr(def, name)) builder.Attr(name, def.attr().at(name));
  }
  return builder.Finish();
}

Output MaxPoolGradient(GradientContext* c) {
  return WithWindow(c, "MaxPoolGrad", {c->input(0), c->output(0), c->dense_grad()});
}

// MaxPoolGrad and MaxPoolGradGrad are linear in grad, each the way back of the other; which
// elements are largest does not change.
template <Pass kPass>
std::vector<Output> MaxPoolGradGradient(GradientContext* c) {
  const char* const op = kPass == Pass::kMaxGrad ? "MaxPoolGradGrad" : "MaxPoolGrad";
  return {Output(), Output(), WithWindow(c, op, {c->input(0), c->input(1), c->dense_grad()})};
}

Output AvgPoolGradient(GradientContext* c) {
  return WithWindow(c, "AvgPoolGrad", {ShapeOf(c->scope(), c->input(0)), c->dense_grad()});
}
std::vector<Output> AvgPoolGradGradient(GradientContext* c) {
  return {Output(), WithWindow(c, "AvgPool", {c->dense_grad()})};
}

// --- Definitions ---------------------------------------------------------------------------------

constexpr char kOriginals[] = "orig_input: T, orig_output: T, grad: T";
constexpr char kMaxTypes[] =
    "T: {half, bfloat16, float, double, int32, int64, uint8, int16, int8, uint16, qint8} = "
    "DT_FLOAT; ";
constexpr char kMaxFormats[] =
    "padding: {'SAME', 'VALID'}; data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'";
constexpr char kFormats[] = "padding: {'SAME', 'VALID'}; data_format: {'NHWC', 'NCHW'} = 'NHWC'; ";

// An op and, of the max poolings, its V2 form, where ksize and strides are the last inputs instead
// of attrs between `first` and `last`.
template <Pass kPass>
class PoolOps {
 public:
  template <typename Gradient>
  PoolOps(const std::string& op, absl::string_view inputs, absl::string_view first,
          absl::string_view last, Gradient gradient) {
    constexpr absl::string_view kSizes = "ksize: list(int) >= 4; strides: list(int) >= 4; ";
    Register(op, inputs, absl::StrCat(first, kSizes, last), gradient);
    if (kIsMean) return;
    Register(op + "V2", absl::StrCat(inputs, ", ksize: int32, strides: int32"),
             absl::StrCat(first, last), gradient);
  }

 private:
  static constexpr bool kIsMean = kPass == Pass::kMean || kPass == Pass::kMeanGrad;

  template <typename Gradient>
  static void Register(const std::string& op, absl::string_view inputs, absl::string_view attrs,
                       Gradient gradient) {
    const auto has_loop = [](DType dtype) {
      const PoolLoops* loops = math::FindPool(dtype);
      return loops != nullptr && (!kIsMean || loops->mean != nullptr);
    };
    OpRegistration{
        OpSpec(op, absl::StrCat(inputs, " -> output: T"), attrs)
            .With(RuledKernelFor<PoolRule<kPass>>(RunPool<kPass>).TypesWith("T", has_loop))
            .Gradient(gradient)};
  }
};

const PoolOps<Pass::kMax> kMaxPool("MaxPool", "input: T", kMaxTypes, kMaxFormats, MaxPoolGradient);
const PoolOps<Pass::kMaxGrad> kMaxPoolGrad("MaxPoolGrad", kOriginals, "",
                                           absl::StrCat(kFormats, "T: realnumbertype = DT_FLOAT"),
                                           MaxPoolGradGradient<Pass::kMaxGrad>);
const PoolOps<Pass::kMaxGradGrad> kMaxPoolGradGrad("MaxPoolGradGrad", kOriginals, "",
                                                   absl::StrCat(kFormats, "T: realnumbertype"),
                                                   MaxPoolGradGradient<Pass::kMaxGradGrad>);

const std::string kMeanAttrs = absl::StrCat(kFormats, "T: {half, bfloat16, float, double}");
const PoolOps<Pass::kMean> kAvgPool("AvgPool", "value: T", "", kMeanAttrs, AvgPoolGradient);
const PoolOps<Pass::kMeanGrad> kAvgPoolGrad("AvgPoolGrad", "orig_input_shape: int32, grad: T", "",
                                            kMeanAttrs, AvgPoolGradGradient);

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/conv2d.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "dnnl.hpp"
#include "ops/loops/gemm.h"

namespace millrace::math {
namespace {

// Multiplications and additions of the whole convolution.
double Products(const Conv2DShape& s) {
  return static_cast<double>(s.batch) * static_cast<double>(s.out_rows) *
         static_cast<double>(s.out_cols) * static_cast<double>(s.out_channels) *
         static_cast<double>(s.filter_rows) * static_cast<double>(s.filter_cols) *
         static_cast<double>(s.in_channels);
}

// --- Plain loops ---------------------------------------------------------------------------------
// The innermost loop runs over output channels (or, towards the input, reduces over them), which
// are contiguous in output and filter.

template <typename T>
class DirectPlan : public Conv2DPlan {
 public:
  DirectPlan(const Conv2DShape& shape, Conv2DPass pass) : s_(shape), pass_(pass) {}

  int64_t num_parts() const override {
    switch (pass_) {
      case Conv2DPass::kForward:
        return s_.batch * s_.out_rows;
      case Conv2DPass::kInputGradient:
        return s_.batch * s_.in_rows;
      case Conv2DPass::kFilterGradient:
        return s_.filter_rows * s_.filter_cols * s_.in_channels;
    }
    return 0;
  }
  // Measured on one core: about 0.3 ns for a multiplication and addition.
  double part_cost_ns() const override {
    return 0.3 * Products(s_) / static_cast<double>(num_parts());
  }
  size_t scratch_bytes() const override { return 0; }
  void Begin(const Conv2DArrays&) const override {}
  void End(const Conv2DArrays&) const override {}
  void RunPart(int64_t part, const Conv2DArrays& arrays) const override {
    const T* a = static_cast<const T*>(arrays.a);
    const T* b = static_cast<const T*>(arrays.b);
    T* result = static_cast<T*>(arrays.result);
    switch (pass_) {
      case Conv2DPass::kForward:
        return OutputRow(part, a, b, result);
      case Conv2DPass::kInputGradient:
        return InputRow(part, a, b, result);
      case Conv2DPass::kFilterGradient:
        return FilterRow(part, a, b, result);
    }
  }

 private:
  // One row of pixels of the output.
  void OutputRow(int64_t row, const T* input, const T* filter, T* output) const {
    const int64_t n = row / s_.out_rows;
    const int64_t r = row % s_.out_rows;
    T* out_row = output + row * s_.out_cols * s_.out_channels;
    std::fill_n(out_row, s_.out_cols * s_.out_channels, T(0));
    for (int64_t i = 0; i < s_.filter_rows; ++i) {
      const int64_t in_r = r * s_.stride_rows - s_.pad_top + i * s_.dilation_rows;
      if (in_r < 0 || in_r >= s_.in_rows) continue;
      const T* in_row = input + (n * s_.in_rows + in_r) * s_.in_cols * s_.in_channels;
      for (int64_t c = 0; c < s_.out_cols; ++c) {
        T* out = out_row + c * s_.out_channels;
        for (int64_t j = 0; j < s_.filter_cols; ++j) {
          const int64_t in_c = c * s_.stride_cols - s_.pad_left + j * s_.dilation_cols;
          if (in_c < 0 || in_c >= s_.in_cols) continue;
          const T* in = in_row + in_c * s_.in_channels;
          const T* w = filter + (i * s_.filter_cols + j) * s_.in_channels * s_.out_channels;
          for (int64_t k = 0; k < s_.in_channels; ++k, w += s_.out_channels) {
            const T x = in[k];
            for (int64_t o = 0; o < s_.out_channels; ++o) out[o] += x * w[o];
          }
        }
      }
    }
  }

  // Where input position `in` is touched by tap `tap`: the output position, or -1.
  static int64_t OutputOf(int64_t in, int64_t tap, int64_t stride, int64_t pad, int64_t dilation,
                          int64_t out_size) {
    const int64_t at = in + pad - tap * dilation;
    if (at < 0 || at % stride != 0) return -1;
    return at / stride < out_size ? at / stride : -1;
  }

  // One row of pixels of the input's gradient.
  void InputRow(int64_t row, const T* grad, const T* filter, T* result) const {
    const int64_t n = row / s_.in_rows;
    const int64_t in_r = row % s_.in_rows;
    T* in_row = result + row * s_.in_cols * s_.in_channels;
    std::fill_n(in_row, s_.in_cols * s_.in_channels, T(0));
    for (int64_t i = 0; i < s_.filter_rows; ++i) {
      const int64_t r =
          OutputOf(in_r, i, s_.stride_rows, s_.pad_top, s_.dilation_rows, s_.out_rows);
      if (r < 0) continue;
      for (int64_t in_c = 0; in_c < s_.in_cols; ++in_c) {
        T* in = in_row + in_c * s_.in_channels;
        for (int64_t j = 0; j < s_.filter_cols; ++j) {
          const int64_t c =
              OutputOf(in_c, j, s_.stride_cols, s_.pad_left, s_.dilation_cols, s_.out_cols);
          if (c < 0) continue;
          const T* g = grad + ((n * s_.out_rows + r) * s_.out_cols + c) * s_.out_channels;
          const T* w = filter + (i * s_.filter_cols + j) * s_.in_channels * s_.out_channels;
          for (int64_t k = 0; k < s_.in_channels; ++k, w += s_.out_channels) {
            T sum = 0;
            for (int64_t o = 0; o < s_.out_channels; ++o) sum += g[o] * w[o];
            in[k] += sum;
          }
        }
      }
    }
  }

  // The gradient of filter[i, j, k, :].
  void FilterRow(int64_t row, const T* input, const T* grad, T* result) const {
    const int64_t k = row % s_.in_channels;
    const int64_t j = row / s_.in_channels % s_.filter_cols;
    const int64_t i = row / s_.in_channels / s_.filter_cols;
    T* w = result + row * s_.out_channels;
    std::fill_n(w, s_.out_channels, T(0));
    for (int64_t n = 0; n < s_.batch; ++n) {
      for (int64_t r = 0; r < s_.out_rows; ++r) {
        const int64_t in_r = r * s_.stride_rows - s_.pad_top + i * s_.dilation_rows;
        if (in_r < 0 || in_r >= s_.in_rows) continue;
        for (int64_t c = 0; c < s_.out_cols; ++c) {
          const int64_t in_c = c * s_.stride_cols - s_.pad_left + j * s_.dilation_cols;
          if (in_c < 0 || in_c >= s_.in_cols) continue;
          const T x = input[((n * s_.in_rows + in_r) * s_.in_cols + in_c) * s_.in_channels + k];
          const T* g = grad + ((n * s_.out_rows + r) * s_.out_cols + c) * s_.out_channels;
          for (int64_t o = 0; o < s_.out_channels; ++o) w[o] += x * g[o];
        }
      }
    }
  }

  const Conv2DShape s_;
  const Conv2DPass pass_;
};

// --- oneDNN --------------------------------------------------------------------------------------

using dnnl::memory;

const dnnl::engine& Engine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

dnnl::stream& Stream() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

memory::desc Image(int64_t batch, int64_t rows, int64_t cols, int64_t channels) {
  return memory::desc({batch, channels, rows, cols}, memory::data_type::f32,
                      memory::format_tag::nhwc);
}
memory::desc Filter(const Conv2DShape& s, memory::format_tag tag) {
  return memory::desc({s.out_channels, s.in_channels, s.filter_rows, s.filter_cols},
                      memory::data_type::f32, tag);
}

// oneDNN takes non-const memory also for what it only reads.
memory MemoryAt(const memory::desc& desc, const void* data) {
  return memory(desc, Engine(), const_cast<void*>(data));
}

size_t Aligned(size_t bytes) { return (bytes + 63) & ~size_t{63}; }

// A convolution of one size as oneDNN runs it.
struct Primitive {
  dnnl::primitive primitive;
  memory::desc a, b, result;
  size_t scratch_bytes = 0;
};

Primitive MakePrimitive(const Conv2DShape& s, Conv2DPass pass) {
  const memory::desc input = Image(s.batch, s.in_rows, s.in_cols, s.in_channels);
  const memory::desc output = Image(s.batch, s.out_rows, s.out_cols, s.out_channels);
  // Its own layout for the filter: many times faster than the plain one.
  const memory::desc filter = Filter(s, memory::format_tag::any);
  const memory::dims strides = {s.stride_rows, s.stride_cols};
  const memory::dims dilations = {s.dilation_rows - 1, s.dilation_cols - 1};
  const memory::dims pad_before = {s.pad_top, s.pad_left};
  const memory::dims pad_after = {s.pad_bottom, s.pad_right};
  const auto algorithm = dnnl::algorithm::convolution_direct;
  dnnl::primitive_attr attr;
  // The library's own scratchpad belongs to threads; ours belongs to the run.
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, algorithm, input, filter, output, strides, dilations,
       pad_before, pad_after},
      attr, Engine());
  switch (pass) {
    case Conv2DPass::kForward:
      return {dnnl::convolution_forward(forward), forward.src_desc(), forward.weights_desc(),
              forward.dst_desc(), forward.scratchpad_desc().get_size()};
    case Conv2DPass::kInputGradient: {
      const dnnl::convolution_backward_data::primitive_desc backward(
          {algorithm, input, filter, output, strides, dilations, pad_before, pad_after}, attr,
          Engine(), forward);
      return {dnnl::convolution_backward_data(backward), backward.diff_dst_desc(),
              backward.weights_desc(), backward.diff_src_desc(),
              backward.scratchpad_desc().get_size()};
    }
    case Conv2DPass::kFilterGradient: {
      const dnnl::convolution_backward_weights::primitive_desc backward(
          {algorithm, input, filter, output, strides, dilations, pad_before, pad_after}, attr,
          Engine(), forward);
      return {dnnl::convolution_backward_weights(backward), backward.src_desc(),
              backward.diff_dst_desc(), backward.diff_weights_desc(),
              backward.scratchpad_desc().get_size()};
    }
  }
  return {};
}

// A part covers some images, or some output rows of one image.
class DnnlPlan : public Conv2DPlan {
 public:
  DnnlPlan(const Conv2DShape& shape, Conv2DPass pass) : s_(shape), pass_(pass) {
    UseOneOpenMpThread();
    if (!CutRows()) CutBatch();
    // All parts must agree on the filter's layout.
    filter_ = FilterDesc(primitives_[parts_[0].primitive]);
    for (const Primitive& p : primitives_) {
      if (FilterDesc(p) != filter_) {
        parts_.clear();
        primitives_.clear();
        parts_.push_back(Part{AddPrimitive(s_), 0, 0, 0});
        filter_ = FilterDesc(primitives_[0]);
        break;
      }
    }
    size_t primitive_scratch = 0;
    for (const Primitive& p : primitives_) {
      primitive_scratch = std::max(primitive_scratch, p.scratch_bytes);
    }
    const memory::desc plain = Filter(s_, memory::format_tag::hwio);
    copies_filter_ = filter_ != plain;
    filter_bytes_ = Aligned(filter_.get_size());
    primitive_scratch_ = Aligned(primitive_scratch);
    if (pass_ == Conv2DPass::kFilterGradient) {
      // Each part has its own sum, which End adds up.
      filter_copies_ = parts_.size();
    } else {
      filter_copies_ = copies_filter_ ? 1 : 0;
    }
    if (copies_filter_) {
      const memory::desc& from = pass_ == Conv2DPass::kFilterGradient ? filter_ : plain;
      const memory::desc& to = pass_ == Conv2DPass::kFilterGradient ? plain : filter_;
      reorder_ = dnnl::reorder(dnnl::reorder::primitive_desc(Engine(), from, Engine(), to));
    }
  }

  int64_t num_parts() const override { return static_cast<int64_t>(parts_.size()); }
  double part_cost_ns() const override {
    return 1000 + kProductNs * Products(s_) / static_cast<double>(parts_.size());
  }
  size_t scratch_bytes() const override {
    return filter_copies_ * filter_bytes_ + parts_.size() * primitive_scratch_;
  }

  void Begin(const Conv2DArrays& arrays) const override {
    if (pass_ == Conv2DPass::kFilterGradient || !copies_filter_) return;
    UseOneOpenMpThread();
    reorder_.execute(Stream(),
                     {{DNNL_ARG_FROM, MemoryAt(Filter(s_, memory::format_tag::hwio), arrays.b)},
                      {DNNL_ARG_TO, MemoryAt(filter_, arrays.scratch)}});
  }

  void RunPart(int64_t index, const Conv2DArrays& arrays) const override {
    UseOneOpenMpThread();
    const Part& part = parts_[static_cast<size_t>(index)];
    const Primitive& p = primitives_[part.primitive];
    const int64_t in_row = s_.in_cols * s_.in_channels;
    const int64_t out_row = s_.out_cols * s_.out_channels;
    const int64_t input_at = (part.image * s_.in_rows + part.in_row) * in_row;
    const int64_t output_at = (part.image * s_.out_rows + part.out_row) * out_row;
    const float* a = static_cast<const float*>(arrays.a);
    const float* b = static_cast<const float*>(arrays.b);
    float* result = static_cast<float*>(arrays.result);
    const size_t own = static_cast<size_t>(index);
    const void* filter = copies_filter_ ? static_cast<const void*>(arrays.scratch) : arrays.b;
    const memory scratch =
        MemoryAt(memory::desc({static_cast<int64_t>(p.scratch_bytes)}, memory::data_type::u8,
                              memory::format_tag::x),
                 arrays.scratch + filter_copies_ * filter_bytes_ + own * primitive_scratch_);
    switch (pass_) {
      case Conv2DPass::kForward:
        p.primitive.execute(Stream(), {{DNNL_ARG_SRC, MemoryAt(p.a, a + input_at)},
                                       {DNNL_ARG_WEIGHTS, MemoryAt(p.b, filter)},
                                       {DNNL_ARG_DST, MemoryAt(p.result, result + output_at)},
                                       {DNNL_ARG_SCRATCHPAD, scratch}});
        break;
      case Conv2DPass::kInputGradient:
        p.primitive.execute(Stream(), {{DNNL_ARG_DIFF_DST, MemoryAt(p.a, a + output_at)},
                                       {DNNL_ARG_WEIGHTS, MemoryAt(p.b, filter)},
                                       {DNNL_ARG_DIFF_SRC, MemoryAt(p.result, result + input_at)},
                                       {DNNL_ARG_SCRATCHPAD, scratch}});
        break;
      case Conv2DPass::kFilterGradient:
        p.primitive.execute(Stream(), {{DNNL_ARG_SRC, MemoryAt(p.a, a + input_at)},
                                       {DNNL_ARG_DIFF_DST, MemoryAt(p.b, b + output_at)},
                                       {DNNL_ARG_DIFF_WEIGHTS,
                                        MemoryAt(p.result, arrays.scratch + own * filter_bytes_)},
                                       {DNNL_ARG_SCRATCHPAD, scratch}});
        break;
    }
  }

  void End(const Conv2DArrays& arrays) const override {
    if (pass_ != Conv2DPass::kFilterGradient) return;
    float* sum = reinterpret_cast<float*>(arrays.scratch);
    const size_t n = filter_.get_size() / sizeof(float);
    for (size_t part = 1; part < parts_.size(); ++part) {
      const float* other = reinterpret_cast<const float*>(arrays.scratch + part * filter_bytes_);
      for (size_t i = 0; i < n; ++i) sum[i] += other[i];
    }
    if (!copies_filter_) {
      std::memcpy(arrays.result, sum, filter_.get_size());
      return;
    }
    UseOneOpenMpThread();
    reorder_.execute(
        Stream(), {{DNNL_ARG_FROM, MemoryAt(filter_, sum)},
                   {DNNL_ARG_TO, MemoryAt(Filter(s_, memory::format_tag::hwio), arrays.result)}});
  }

 private:
  struct Part {
    size_t primitive;
    int64_t image;
    int64_t in_row;   // first row of the image that the part reads
    int64_t out_row;  // first row that it writes
  };

  const memory::desc& FilterDesc(const Primitive& p) const {
    return pass_ == Conv2DPass::kFilterGradient ? p.result : p.b;
  }

  size_t AddPrimitive(const Conv2DShape& shape) {
    primitives_.push_back(MakePrimitive(shape, pass_));
    return primitives_.size() - 1;
  }

  // As many parts as are worth their start.
  static constexpr int64_t kMaxParts = 16;
  int64_t WorthwhileParts() const {
    return static_cast<int64_t>(
        std::clamp(kProductNs * Products(s_) / kMinPartNs, 1.0, static_cast<double>(kMaxParts)));
  }

  // Pieces of the batch of nearly equal size.
  void CutBatch() {
    // The gradient of the filter adds the pieces up: each costs a filter's worth of additions.
    const int64_t pieces = pass_ == Conv2DPass::kFilterGradient
                               ? std::clamp<int64_t>(s_.batch / 16, 1, 8)
                               : std::min<int64_t>(s_.batch, WorthwhileParts());
    int64_t last_size = -1;
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t from = s_.batch / pieces * i + std::min(i, s_.batch % pieces);
      const int64_t size = s_.batch / pieces + (i < s_.batch % pieces ? 1 : 0);
      if (size != last_size) {
        Conv2DShape piece = s_;
        piece.batch = size;
        AddPrimitive(piece);
        last_size = size;
      }
      parts_.push_back(Part{primitives_.size() - 1, from, 0, 0});
    }
  }

  // For small batches: output rows of each image. False when that is not worth it.
  bool CutRows() {
    constexpr int64_t kSmallBatch = 8;
    if (pass_ != Conv2DPass::kForward || s_.batch >= kSmallBatch) return false;
    const int64_t parts_wanted = std::min<int64_t>(kSmallBatch, WorthwhileParts());
    const int64_t pieces =
        std::min<int64_t>((parts_wanted + s_.batch - 1) / s_.batch, s_.out_rows / 4);
    if (pieces < 2) return false;
    std::vector<Conv2DShape> shapes;
    std::vector<Part> parts;
    const int64_t extent = (s_.filter_rows - 1) * s_.dilation_rows + 1;
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t from = s_.out_rows * i / pieces;
      const int64_t to = s_.out_rows * (i + 1) / pieces;
      const int64_t in_from = from * s_.stride_rows - s_.pad_top;
      const int64_t in_to = (to - 1) * s_.stride_rows - s_.pad_top + extent;
      const int64_t read_from = std::max<int64_t>(in_from, 0);
      const int64_t read_to = std::min(in_to, s_.in_rows);
      if (read_from >= read_to) return false;
      Conv2DShape piece = s_;
      piece.batch = 1;
      piece.in_rows = read_to - read_from;
      piece.out_rows = to - from;
      piece.pad_top = read_from - in_from;
      piece.pad_bottom = in_to - read_to;
      shapes.push_back(piece);
      parts.push_back(Part{0, 0, read_from, from});
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      const bool same = i > 0 && shapes[i] == shapes[i - 1];
      parts[i].primitive = same ? parts[i - 1].primitive : AddPrimitive(shapes[i]);
    }
    for (int64_t image = 0; image < s_.batch; ++image) {
      for (Part part : parts) {
        part.image = image;
        parts_.push_back(part);
      }
    }
    return true;
  }

  // Measured on one core with AVX-512, rounded: one multiplication and addition.
  static constexpr double kProductNs = 0.02;
  static constexpr double kMinPartNs = 50e3;

  const Conv2DShape s_;
  const Conv2DPass pass_;
  std::vector<Primitive> primitives_;
  std::vector<Part> parts_;
  memory::desc filter_;         // the filter as the primitives want it
  bool copies_filter_ = false;  // that is not the plain layout
  size_t filter_copies_ = 0;    // at the beginning of the scratch memory
  size_t filter_bytes_ = 0;
  size_t primitive_scratch_ = 0;
  dnnl::reorder reorder_;
};

// Below this many multiplications the calls into oneDNN cost more than the loops.
constexpr double kTinyConvolution = 16 * 1024;

// oneDNN computes in int in places.
bool FitsDnnl(const Conv2DShape& s) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (const int64_t size :
       {s.batch, s.in_rows, s.in_cols, s.in_channels, s.filter_rows, s.filter_cols, s.out_rows,
        s.out_cols, s.out_channels, s.stride_rows, s.stride_cols, s.dilation_rows, s.dilation_cols,
        s.pad_top, s.pad_bottom, s.pad_left, s.pad_right}) {
    if (size > kMax / 2) return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<const Conv2DPlan> MakeDirectConv2DPlan(const Conv2DShape& shape, Conv2DPass pass,
                                                       DType dtype) {
  if (dtype == DT_FLOAT) return std::make_unique<DirectPlan<float>>(shape, pass);
  if (dtype == DT_DOUBLE) return std::make_unique<DirectPlan<double>>(shape, pass);
  return nullptr;
}

std::unique_ptr<const Conv2DPlan> MakeConv2DPlan(const Conv2DShape& shape, Conv2DPass pass,
                                                 DType dtype) {
  if (dtype == DT_FLOAT && Products(shape) > kTinyConvolution && FitsDnnl(shape)) {
    try {
      return std::make_unique<DnnlPlan>(shape, pass);
    } catch (const dnnl::error&) {
      // It has no primitive for this: the loops have.
    }
  }
  return MakeDirectConv2DPlan(shape, pass, dtype);
}

}  // namespace millrace::math

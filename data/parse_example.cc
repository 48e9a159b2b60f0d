// SPDX-License-Identifier: Apache-2.0
#include "data/parse_example.h"

#include <string>
#include <utility>
#include <vector>

#include "data/example_batch.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"
#include "runtime/step_context.h"

namespace millrace {
namespace {

// A vector of as many elements as there are examples, or of none.
Status CheckNames(const PartialShape& names, int64_t batch) {
  if (names.dim(0) <= 0 || batch < 0 || names.dim(0) == batch) return absl::OkStatus();
  return InvalidArgument("names must be empty or have one element for each of the ", batch,
                         " examples, got ", names.dim(0));
}

StatusOr<PartialShape> Vector(RuleContext* c, int i, const char* name) {
  const PartialShape& shape = c->input(i);
  if (!shape.has_rank()) return PartialShape::UnknownOfRank(1);
  if (shape.rank() == 1) return shape;
  return InvalidArgument(name, " must be a vector, got shape ", shape);
}

Status CheckDefaults(RuleContext* c, const ExampleForms& forms, int first_input) {
  for (size_t d = 0; d < forms.dense.size(); ++d) {
    MR_RETURN_IF_ERROR(forms.dense[d].CheckDefault(d, c->input(first_input + static_cast<int>(d))));
  }
  return absl::OkStatus();
}

Status ParseInStep(KernelContext* ctx, const ExampleForms& forms, const FeatureKeys& keys,
                   ExampleInputs inputs, const ExampleOutputs& outputs) {
  const absl::Span<const std::string> texts = ctx->input(0).raw<std::string>();
  const std::vector<absl::string_view> serialized(texts.begin(), texts.end());
  inputs.serialized = serialized;
  return ParseExamples(forms, keys, inputs, outputs, ctx->step().arena,
                       [&](int i, const Shape& shape) { return ctx->AllocateOutput(i, shape); });
}

// Outputs in the order of the op's lists.
ExampleOutputs OutputsInOrder(const ExampleForms& forms) {
  const int sparse = static_cast<int>(forms.sparse.size());
  const int dense = static_cast<int>(forms.dense.size());
  const int ragged = static_cast<int>(forms.ragged.size());
  ExampleOutputs outputs;
  outputs.sparse_values = sparse;
  outputs.sparse_shapes = 2 * sparse;
  outputs.dense = 3 * sparse;
  outputs.ragged_values = outputs.dense + dense;
  outputs.ragged_splits = outputs.ragged_values + ragged;
  return outputs;
}

// --- ParseExample --------------------------------------------------------------------------------

// Each key is an input.
struct ParseExampleRule {
  ExampleForms forms;
  ExampleOutputs outputs;

  Status Init(const NodeAttrs& attrs) {
    int64_t num_sparse = 0, num_dense = 0;
    std::vector<DType> dense_types;
    std::vector<PartialShape> dense_shapes;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "Nsparse", &num_sparse, "Ndense", &num_dense,
                                 "sparse_types", &forms.sparse, "Tdense", &dense_types,
                                 "dense_shapes", &dense_shapes));
    MR_RETURN_IF_ERROR(CheckCount("sparse_types", forms.sparse.size(), "sparse_keys", num_sparse));
    MR_ASSIGN_OR_RETURN(forms.dense,
                        DenseForms("Tdense", dense_types, "dense_shapes", dense_shapes, num_dense));
    outputs = OutputsInOrder(forms);
    return absl::OkStatus();
  }

  static int KeyInput(size_t feature) { return static_cast<int>(2 + feature); }
  int FirstDefault() const { return KeyInput(forms.size()); }

  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape serialized, Vector(c, 0, "serialized"));
    MR_ASSIGN_OR_RETURN(const PartialShape names, Vector(c, 1, "names"));
    MR_RETURN_IF_ERROR(CheckNames(names, serialized.dim(0)));
    for (size_t i = 0; i < forms.size(); ++i) {
      const char* name = i < forms.sparse.size() ? "sparse_keys" : "dense_keys";
      MR_RETURN_IF_ERROR(c->InputWithRank(KeyInput(i), 0, name).status());
    }
    MR_RETURN_IF_ERROR(CheckDefaults(c, forms, FirstDefault()));
    return SetExampleShapes(c, forms, outputs, Batched::kYes, serialized.dim(0));
  }
};

class ParseExampleKernel : public RuledKernel<ParseExampleRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    const ExampleForms& forms = rule().forms;
    std::vector<absl::string_view> key_texts;
    for (size_t i = 0; i < forms.size(); ++i) {
      key_texts.push_back(ctx->input(rule().KeyInput(i)).raw_scalar<std::string>());
    }
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const FeatureKeys> keys,
                        keys_.Get(std::move(key_texts)));
    const int first = rule().FirstDefault();
    const ExampleInputs inputs = {
        .names = ctx->input(1).raw<std::string>(),
        .dense_defaults = ctx->inputs({first, first + static_cast<int>(forms.dense.size())})};
    return ParseInStep(ctx, forms, *keys, inputs, rule().outputs);
  }

 private:
  const LastFeatureKeys keys_;
};

const OpRegistration kParseExample =
    OpSpec("ParseExample",
           "serialized: string, names: string, sparse_keys: Nsparse * string, "
           "dense_keys: Ndense * string, dense_defaults: Tdense -> "
           "sparse_indices: Nsparse * int64, sparse_values: sparse_types, "
           "sparse_shapes: Nsparse * int64, dense_values: Tdense",
           "Nsparse: int >= 0; Ndense: int >= 0; sparse_types: list({float, int64, string}) >= 0; "
           "Tdense: list({float, int64, string}) >= 0; dense_shapes: list(shape) >= 0")
        .Rule<ParseExampleRule>()
        .NotDifferentiable()
        .With(KernelFor<ParseExampleKernel>());

// --- ParseExampleV2 ------------------------------------------------------------------------------

// The keys of a form are an input, a vector; `serialized` may be a scalar, one example.
struct ParseExampleV2Rule {
  ExampleForms forms;
  ExampleOutputs outputs;

  static constexpr int kSparseKeys = 2, kDenseKeys = 3, kRaggedKeys = 4, kFirstDefault = 5;

  Status Init(const NodeAttrs& attrs) {
    int64_t num_sparse = 0;
    std::vector<DType> dense_types;
    std::vector<PartialShape> dense_shapes;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "num_sparse", &num_sparse, "sparse_types", &forms.sparse,
                                 "Tdense", &dense_types, "dense_shapes", &dense_shapes,
                                 "ragged_value_types", &forms.ragged, "ragged_split_types",
                                 &forms.ragged_splits));
    if (static_cast<int64_t>(forms.sparse.size()) != num_sparse) {
      return InvalidArgument("len(sparse_types) must be num_sparse = ", num_sparse, ", got ",
                             forms.sparse.size());
    }
    if (forms.ragged_splits.size() != forms.ragged.size()) {
      return InvalidArgument("len(ragged_split_types) must be len(ragged_value_types) = ",
                             forms.ragged.size(), ", got ", forms.ragged_splits.size());
    }
    MR_ASSIGN_OR_RETURN(forms.dense, DenseForms("Tdense", dense_types, "dense_shapes", dense_shapes,
                                                static_cast<int64_t>(dense_types.size())));
    outputs = OutputsInOrder(forms);
    return absl::OkStatus();
  }

  Status operator()(RuleContext* c) const {
    const PartialShape& serialized = c->input(0);
    if (serialized.has_rank() && serialized.rank() > 1) {
      return InvalidArgument("serialized must be a vector or a scalar, got shape ", serialized);
    }
    const PartialShape& names = c->input(1);
    if (names.has_rank() && names.rank() > 1) {
      return InvalidArgument("names must be a vector or a scalar, got shape ", names);
    }
    const struct {
      const char* name;
      int input;
      size_t count;
    } keys[] = {{"sparse_keys", kSparseKeys, forms.sparse.size()},
                {"dense_keys", kDenseKeys, forms.dense.size()},
                {"ragged_keys", kRaggedKeys, forms.ragged.size()}};
    for (const auto& k : keys) {
      MR_ASSIGN_OR_RETURN(const PartialShape shape, Vector(c, k.input, k.name));
      if (shape.dim(0) < 0 || shape.dim(0) == static_cast<int64_t>(k.count)) continue;
      return InvalidArgument(k.name, " must have ", k.count, " elements, as the types say, got ",
                             shape.dim(0));
    }
    MR_RETURN_IF_ERROR(CheckDefaults(c, forms, kFirstDefault));
    if (!serialized.has_rank()) return absl::OkStatus();
    if (serialized.rank() == 0) {
      if (names.IsFullyDefined() && names.num_elements() > 1) return CheckNames(names, 1);
      return SetExampleShapes(c, forms, outputs, Batched::kNo, 1);
    }
    if (names.has_rank() && names.rank() == 1) {
      MR_RETURN_IF_ERROR(CheckNames(names, serialized.dim(0)));
    } else if (names.has_rank() && serialized.dim(0) > 1) {
      return InvalidArgument("names must be a vector as serialized is, got shape ", names);
    }
    return SetExampleShapes(c, forms, outputs, Batched::kYes, serialized.dim(0));
  }
};

class ParseExampleV2Kernel : public RuledKernel<ParseExampleV2Rule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    using Rule = ParseExampleV2Rule;
    std::vector<absl::string_view> key_texts;
    for (const int input : {Rule::kSparseKeys, Rule::kDenseKeys, Rule::kRaggedKeys}) {
      const absl::Span<const std::string> keys = ctx->input(input).raw<std::string>();
      key_texts.insert(key_texts.end(), keys.begin(), keys.end());
    }
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const FeatureKeys> keys,
                        keys_.Get(std::move(key_texts)));
    const int dense = static_cast<int>(rule().forms.dense.size());
    const ExampleInputs inputs = {
        .names = ctx->input(1).raw<std::string>(),
        .dense_defaults = ctx->inputs({Rule::kFirstDefault, Rule::kFirstDefault + dense}),
        .batched = ctx->input(0).rank() == 0 ? Batched::kNo : Batched::kYes};
    return ParseInStep(ctx, rule().forms, *keys, inputs, rule().outputs);
  }

 private:
  const LastFeatureKeys keys_;
};

const OpRegistration kParseExampleV2 =
    OpSpec("ParseExampleV2",
           "serialized: string, names: string, sparse_keys: string, dense_keys: string, "
           "ragged_keys: string, dense_defaults: Tdense -> "
           "sparse_indices: num_sparse * int64, sparse_values: sparse_types, "
           "sparse_shapes: num_sparse * int64, dense_values: Tdense, "
           "ragged_values: ragged_value_types, ragged_row_splits: ragged_split_types",
           "Tdense: list({float, int64, string}) >= 0; num_sparse: int >= 0; "
           "sparse_types: list({float, int64, string}) >= 0; "
           "ragged_value_types: list({float, int64, string}) >= 0; "
           "ragged_split_types: list({int32, int64}) >= 0; dense_shapes: list(shape) >= 0")
        .Rule<ParseExampleV2Rule>()
        .NotDifferentiable()
        .With(KernelFor<ParseExampleV2Kernel>());

// --- ParseSingleExample --------------------------------------------------------------------------

// The keys are attrs.
struct ParseSingleExampleRule {
  ExampleForms forms;
  ExampleOutputs outputs;
  std::shared_ptr<const FeatureKeys> keys;

  Status Init(const NodeAttrs& attrs) {
    int64_t num_sparse = 0;
    std::vector<std::string> all_keys, dense_keys;
    std::vector<DType> dense_types;
    std::vector<PartialShape> dense_shapes;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "num_sparse", &num_sparse, "sparse_keys", &all_keys,
                                 "dense_keys", &dense_keys, "sparse_types", &forms.sparse, "Tdense",
                                 &dense_types, "dense_shapes", &dense_shapes));
    const int64_t sparse = static_cast<int64_t>(all_keys.size());
    if (num_sparse != sparse) {
      return InvalidArgument("num_sparse (", num_sparse, ") must match the size of sparse_keys (",
                             sparse, ")");
    }
    MR_RETURN_IF_ERROR(CheckCount("sparse_types", forms.sparse.size(), "sparse_keys", sparse));
    MR_ASSIGN_OR_RETURN(forms.dense, DenseForms("Tdense", dense_types, "dense_shapes", dense_shapes,
                                                static_cast<int64_t>(dense_keys.size())));
    all_keys.insert(all_keys.end(), dense_keys.begin(), dense_keys.end());
    MR_ASSIGN_OR_RETURN(keys, FeatureKeys::Make(std::move(all_keys)));
    outputs = OutputsInOrder(forms);
    return absl::OkStatus();
  }

  Status operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "serialized").status());
    MR_RETURN_IF_ERROR(CheckDefaults(c, forms, 1));
    return SetExampleShapes(c, forms, outputs, Batched::kNo, 1);
  }
};

Status RunParseSingleExample(KernelContext* ctx, const ParseSingleExampleRule& rule) {
  const int dense = static_cast<int>(rule.forms.dense.size());
  const ExampleInputs inputs = {.dense_defaults = ctx->inputs({1, 1 + dense}),
                                .batched = Batched::kNo};
  return ParseInStep(ctx, rule.forms, *rule.keys, inputs, rule.outputs);
}

const OpRegistration kParseSingleExample =
    OpSpec("ParseSingleExample",
           "serialized: string, dense_defaults: Tdense -> "
           "sparse_indices: num_sparse * int64, sparse_values: sparse_types, "
           "sparse_shapes: num_sparse * int64, dense_values: Tdense",
           "num_sparse: int >= 0; sparse_keys: list(string) >= 0; dense_keys: list(string) >= 0; "
           "sparse_types: list({float, int64, string}) >= 0; "
           "Tdense: list({float, int64, string}) >= 0; dense_shapes: list(shape) >= 0")
        .NotDifferentiable()
        .With(RuledKernelFor<ParseSingleExampleRule>(RunParseSingleExample));

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// The context is parsed as a batch of Examples is (data/example_batch.h): its field has the number
// of an Example's features. The lists are gone through twice, in parallel over the examples: to
// check them and to count, then to copy. So nothing is kept per step.
#include "data/parse_sequence_example.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/example_batch.h"
#include "data/example_wire.h"
#include "graph/op_registry.h"
#include "runtime/kernel.h"
#include "runtime/step_context.h"

namespace millrace {
namespace {

// --- What both ops want --------------------------------------------------------------------------

struct SequenceForms {
  ExampleForms context;
  std::vector<DType> sparse_lists;
  std::vector<DenseForm> dense_lists;

  size_t num_lists() const { return sparse_lists.size() + dense_lists.size(); }
};

struct SequenceOutputsAt {
  ExampleOutputs context;
  int sparse_indices = 0, sparse_values = 0, sparse_shapes = 0;  // of lists
  int dense = 0;
  int dense_lengths = 0;
};

// Of what attrs of both ops say.
Status ReadForms(const NodeAttrs& attrs, SequenceForms* forms) {
  int64_t context_sparse = 0, context_dense = 0, list_sparse = 0, list_dense = 0;
  std::vector<DType> context_types, list_types;
  std::vector<PartialShape> context_shapes, list_shapes;
  MR_RETURN_IF_ERROR(ReadAttrs(
      attrs, "Ncontext_sparse", &context_sparse, "Ncontext_dense", &context_dense,
      "Nfeature_list_sparse", &list_sparse, "Nfeature_list_dense", &list_dense,
      "context_sparse_types", &forms->context.sparse, "Tcontext_dense", &context_types,
      "context_dense_shapes", &context_shapes, "feature_list_sparse_types", &forms->sparse_lists,
      "feature_list_dense_types", &list_types, "feature_list_dense_shapes", &list_shapes));
  MR_RETURN_IF_ERROR(CheckCount("context_sparse_types", forms->context.sparse.size(),
                                "context_sparse_keys", context_sparse));
  MR_RETURN_IF_ERROR(CheckCount("feature_list_sparse_types", forms->sparse_lists.size(),
                                "feature_list_sparse_keys", list_sparse));
  MR_ASSIGN_OR_RETURN(forms->context.dense,
                      DenseForms("Tcontext_dense", context_types, "context_dense_shapes",
                                 context_shapes, context_dense));
  MR_ASSIGN_OR_RETURN(forms->dense_lists,
                      DenseForms("feature_list_dense_types", list_types,
                                 "feature_list_dense_shapes", list_shapes, list_dense));
  for (size_t d = 0; d < forms->dense_lists.size(); ++d) {
    if (!forms->dense_lists[d].is_variable) continue;
    return InvalidArgument("feature_list_dense_shapes[", d, "] must be known whole, got ",
                           list_shapes[d]);
  }
  return absl::OkStatus();
}

SequenceOutputsAt OutputsInOrder(const SequenceForms& forms) {
  const int sparse = static_cast<int>(forms.context.sparse.size());
  const int list_sparse = static_cast<int>(forms.sparse_lists.size());
  SequenceOutputsAt at;
  at.context.sparse_values = sparse;
  at.context.sparse_shapes = 2 * sparse;
  at.context.dense = 3 * sparse;
  at.sparse_indices = at.context.dense + static_cast<int>(forms.context.dense.size());
  at.sparse_values = at.sparse_indices + list_sparse;
  at.sparse_shapes = at.sparse_values + list_sparse;
  at.dense = at.sparse_shapes + list_sparse;
  at.dense_lengths = at.dense + static_cast<int>(forms.dense_lists.size());
  return at;
}

// `batch`: the number of examples, -1: not known.
Status SetShapes(RuleContext* c, const SequenceForms& forms, const SequenceOutputsAt& outputs,
                 Batched batched, int64_t batch) {
  MR_RETURN_IF_ERROR(SetExampleShapes(c, forms.context, outputs.context, batched, batch));
  const bool has_batch = batched == Batched::kYes;
  const int64_t rank = has_batch ? 3 : 2;
  for (int i = 0; i < static_cast<int>(forms.sparse_lists.size()); ++i) {
    c->set_output(outputs.sparse_indices + i, {-1, rank});
    c->set_output(outputs.sparse_values + i, {-1});
    c->set_output(outputs.sparse_shapes + i, {rank});
  }
  for (int d = 0; d < static_cast<int>(forms.dense_lists.size()); ++d) {
    const std::vector<int64_t>& shape = forms.dense_lists[static_cast<size_t>(d)].shape;
    std::vector<int64_t> dims =
        has_batch ? std::vector<int64_t>{batch, -1} : std::vector<int64_t>{-1};
    dims.insert(dims.end(), shape.begin(), shape.end());
    MR_ASSIGN_OR_RETURN(PartialShape whole, PartialShape::Make(dims));
    c->set_output(outputs.dense + d, std::move(whole));
    if (has_batch) c->set_output(outputs.dense_lengths + d, {batch});
  }
  return absl::OkStatus();
}

// --- Lists ---------------------------------------------------------------------------------------

// Nanoseconds to find a list, and to copy a step's values: roughly as measured.
constexpr double kFindNs = 200, kCopyNs = 200;

// Which lists may be missing, and how they are found. Sparse ones come first.
struct ListKeys {
  std::shared_ptr<const FeatureKeys> keys;
  std::vector<bool> may_be_missing;  // by list
};

class ListParser {
 public:
  ListParser(KernelContext* ctx, const SequenceForms& forms, const ListKeys& keys,
             const ExampleInputs& inputs, const SequenceOutputsAt& outputs)
      : ctx_(ctx),
        forms_(forms),
        keys_(keys),
        in_(inputs),
        out_(outputs),
        batch_(inputs.serialized.size()),
        found_(batch_ * forms.num_lists()) {}

  Status Run() {
    FirstError error;
    const double cost = kFindNs * static_cast<double>(forms_.num_lists() + 1);
    ForEachExample(cost, [&](size_t i) {
      if (static_cast<int64_t>(i) >= error.limit()) return;
      Status status = FindIn(i);
      if (!status.ok()) error.Report(static_cast<int64_t>(i), std::move(status));
    });
    MR_RETURN_IF_ERROR(error.status());
    for (size_t s = 0; s < forms_.sparse_lists.size(); ++s) MR_RETURN_IF_ERROR(MakeSparse(s));
    for (size_t d = 0; d < forms_.dense_lists.size(); ++d) MR_RETURN_IF_ERROR(MakeDense(d));
    return absl::OkStatus();
  }

 private:
  // One list of one example.
  struct Found {
    absl::string_view list;
    bool is_there = false;
    int64_t steps = 0;
    int64_t values = 0;  // of all steps
    int64_t most = 0;    // of one step
  };

  Found& FoundOf(size_t example, size_t list) {
    return found_[example * forms_.num_lists() + list];
  }
  template <typename Body>
  void ForEachExample(double cost_ns, Body body) {
    ctx_->ParallelFor(static_cast<int64_t>(batch_), cost_ns, [&](int64_t begin, int64_t end) {
      for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) body(i);
    });
  }

  Status FindIn(size_t example) {
    FeatureEntries entries(in_.serialized[example], FeatureEntries::kFeatureLists);
    for (FeatureEntry entry; entries.Next(&entry);) {
      const int list = keys_.keys->Find(entry.key);
      if (list < 0) continue;
      Found& found = FoundOf(example, static_cast<size_t>(list));
      found.list = entry.feature;
      found.is_there = true;
    }
    if (!entries.ok()) return Malformed(example);
    for (size_t list = 0; list < forms_.num_lists(); ++list) {
      MR_RETURN_IF_ERROR(Check(example, list, &FoundOf(example, list)));
    }
    return absl::OkStatus();
  }

  Status Check(size_t example, size_t list, Found* found) const {
    if (!found->is_there) {
      if (keys_.may_be_missing[list]) return absl::OkStatus();
      return InvalidArgument("Name: ", Name(example), ", Feature list '", Key(list),
                             "' is required but could not be found.  Did you mean to include it in "
                             "feature_list_dense_missing_assumed_empty or "
                             "feature_list_dense_defaults?");
    }
    const size_t sparse = forms_.sparse_lists.size();
    const DenseForm* const dense = list < sparse ? nullptr : &forms_.dense_lists[list - sparse];
    const DType dtype = dense == nullptr ? forms_.sparse_lists[list] : dense->dtype;
    ListFeatures features(found->list);
    FeatureValues values;
    for (absl::string_view feature; features.Next(&feature); ++found->steps) {
      if (!ReadValues(feature, &values)) return Malformed(example);
      if (values.kind != FeatureKind::kNone && values.kind != KindOf(dtype)) {
        return InvalidArgument(Where(example, list, found->steps),
                               "Data types don't match. Data type: ", NameOf(values.kind),
                               " but expected type: ", dtype);
      }
      if (dense != nullptr && values.count != dense->stride) {
        MR_ASSIGN_OR_RETURN(const PartialShape shape, PartialShape::Make(dense->shape));
        return InvalidArgument(Where(example, list, found->steps), "Number of ", dtype,
                               " values != expected.  values size: ", values.count,
                               " but output shape: ", shape);
      }
      found->values += values.count;
      found->most = std::max(found->most, values.count);
    }
    return features.ok() ? absl::OkStatus() : Malformed(example);
  }

  // Calls body(values, step) for the steps of a list that has been checked.
  template <typename Body>
  static void ForEachStep(const Found& found, Body body) {
    ListFeatures features(found.list);
    FeatureValues values;
    int64_t step = 0;
    for (absl::string_view feature; features.Next(&feature); ++step) {
      if (ReadValues(feature, &values) && values.count > 0) body(values, step);
    }
  }

  Status MakeSparse(size_t s) {
    std::vector<int64_t> starts(batch_ + 1, 0);  // where each example's values begin
    int64_t steps = 0, most = 0;
    for (size_t i = 0; i < batch_; ++i) {
      const Found& found = FoundOf(i, s);
      starts[i + 1] = starts[i] + found.values;
      steps = std::max(steps, found.steps);
      most = std::max(most, found.most);
    }
    const bool has_batch = in_.batched == Batched::kYes;
    const size_t rank = has_batch ? 3 : 2;
    const int output = static_cast<int>(s);
    MR_ASSIGN_OR_RETURN(const Shape places,
                        Shape::Make({starts.back(), static_cast<int64_t>(rank)}));
    MR_ASSIGN_OR_RETURN(Tensor * indices,
                        ctx_->AllocateOutput(out_.sparse_indices + output, places));
    MR_ASSIGN_OR_RETURN(Tensor * values,
                        ctx_->AllocateOutput(out_.sparse_values + output, places.WithoutDim(1)));
    MR_ASSIGN_OR_RETURN(Tensor * shape,
                        ctx_->AllocateOutput(out_.sparse_shapes + output, Shape::Vector(rank)));
    const absl::Span<int64_t> sizes = shape->mutable_raw<int64_t>();
    if (has_batch) sizes[0] = static_cast<int64_t>(batch_);
    sizes[rank - 2] = steps;
    sizes[rank - 1] = most;
    return VisitFeatureType(forms_.sparse_lists[s], [&]<typename T>() {
      const absl::Span<T> to = values->mutable_raw<T>();
      const absl::Span<int64_t> at = indices->mutable_raw<int64_t>();
      ForEachExample(kCopyNs, [&](size_t i) {
        size_t next = static_cast<size_t>(starts[i]);
        ForEachStep(FoundOf(i, s), [&](const FeatureValues& of_step, int64_t step) {
          const size_t count = static_cast<size_t>(of_step.count);
          CopyValues(of_step, to.subspan(next, count));
          for (size_t k = 0; k < count; ++k) {
            const absl::Span<int64_t> place = at.subspan((next + k) * rank, rank);
            if (has_batch) place[0] = static_cast<int64_t>(i);
            place[rank - 2] = step;
            place[rank - 1] = static_cast<int64_t>(k);
          }
          next += count;
        });
      });
      return absl::OkStatus();
    });
  }

  Status MakeDense(size_t d) {
    const DenseForm& form = forms_.dense_lists[d];
    const size_t list = forms_.sparse_lists.size() + d;
    const bool has_batch = in_.batched == Batched::kYes;
    const int output = static_cast<int>(d);
    int64_t steps = 0;
    for (size_t i = 0; i < batch_; ++i) steps = std::max(steps, FoundOf(i, list).steps);
    std::vector<int64_t> dims;
    if (has_batch) {
      MR_ASSIGN_OR_RETURN(Tensor * lengths,
                          ctx_->AllocateOutput(out_.dense_lengths + output, Shape::Vector(batch_)));
      for (size_t i = 0; i < batch_; ++i) {
        lengths->mutable_raw<int64_t>()[i] = FoundOf(i, list).steps;
      }
      dims.push_back(static_cast<int64_t>(batch_));
    }
    dims.push_back(steps);
    dims.insert(dims.end(), form.shape.begin(), form.shape.end());
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * values, ctx_->AllocateOutput(out_.dense + output, shape));
    if (values->num_elements() == 0) return absl::OkStatus();
    const size_t stride = static_cast<size_t>(form.stride);
    const size_t row = static_cast<size_t>(steps) * stride;
    return VisitFeatureType(form.dtype, [&]<typename T>() {
      const absl::Span<T> to = values->mutable_raw<T>();
      ForEachExample(kCopyNs + 0.5 * static_cast<double>(row), [&](size_t i) {
        const absl::Span<T> out = to.subspan(i * row, row);
        ForEachStep(FoundOf(i, list), [&](const FeatureValues& of_step, int64_t step) {
          CopyValues(of_step, out.subspan(static_cast<size_t>(step) * stride, stride));
        });
        const size_t filled = static_cast<size_t>(FoundOf(i, list).steps) * stride;
        std::fill(out.begin() + static_cast<ptrdiff_t>(filled), out.end(), T());
      });
      return absl::OkStatus();
    });
  }

  // --- Errors

  const std::string& Key(size_t list) const { return keys_.keys->keys()[list]; }
  absl::string_view Name(size_t example) const {
    return in_.names.empty() ? absl::string_view("<unknown>") : in_.names[example];
  }
  std::string Where(size_t example, size_t list, int64_t step) const {
    return absl::StrCat("Name: ", Name(example), ", Feature list: ", Key(list), ", Index: ", step,
                        ".  ");
  }
  Status Malformed(size_t example) const {
    return InvalidArgument("Name: ", Name(example), ", Index: ", example,
                           ".  Could not parse example input, value of ",
                           in_.serialized[example].size(),
                           " bytes is no tensorflow.SequenceExample");
  }

  KernelContext* const ctx_;
  const SequenceForms& forms_;
  const ListKeys& keys_;
  const ExampleInputs& in_;
  const SequenceOutputsAt& out_;
  const size_t batch_;
  std::vector<Found> found_;  // [batch_, num_lists]
};

Status CheckDefaults(RuleContext* c, const SequenceForms& forms, int first_input) {
  for (size_t d = 0; d < forms.context.dense.size(); ++d) {
    MR_RETURN_IF_ERROR(
        forms.context.dense[d].CheckDefault(d, c->input(first_input + static_cast<int>(d))));
  }
  return absl::OkStatus();
}

// By list: sparse ones may be missing, dense ones that `assumed_empty` names.
StatusOr<std::vector<bool>> MayBeMissing(const FeatureKeys& keys, const SequenceForms& forms,
                                         absl::Span<const std::string> assumed_empty) {
  std::vector<bool> may(forms.num_lists(), false);
  std::fill(may.begin(), may.begin() + static_cast<ptrdiff_t>(forms.sparse_lists.size()), true);
  for (const std::string& key : assumed_empty) {
    const int list = keys.Find(key);
    if (list >= 0) may[static_cast<size_t>(list)] = true;
  }
  return may;
}

std::vector<absl::string_view> Serialized(KernelContext* ctx) {
  const absl::Span<const std::string> texts = ctx->input(0).raw<std::string>();
  return {texts.begin(), texts.end()};
}

Status ParseContext(KernelContext* ctx, const ExampleForms& forms, const FeatureKeys& keys,
                    const ExampleInputs& inputs, const ExampleOutputs& outputs) {
  return ParseExamples(forms, keys, inputs, outputs, ctx->step().arena,
                       [&](int i, const Shape& shape) { return ctx->AllocateOutput(i, shape); });
}

// --- ParseSequenceExample ------------------------------------------------------------------------

struct SequenceRule {
  SequenceForms forms;
  SequenceOutputsAt outputs;
  std::shared_ptr<const FeatureKeys> context_keys;
  ListKeys lists;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadForms(attrs, &forms));
    outputs = OutputsInOrder(forms);
    std::vector<std::string> context, context_dense, list, list_dense, assumed_empty;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "context_sparse_keys", &context, "context_dense_keys",
                                 &context_dense, "feature_list_sparse_keys", &list,
                                 "feature_list_dense_keys", &list_dense,
                                 "feature_list_dense_missing_assumed_empty", &assumed_empty));
    const auto check = [](absl::string_view name, size_t size, absl::string_view keys, size_t n) {
      return CheckCount(keys, n, name, static_cast<int64_t>(size));
    };
    MR_RETURN_IF_ERROR(check("context_sparse_types", forms.context.sparse.size(),
                             "context_sparse_keys", context.size()));
    MR_RETURN_IF_ERROR(check("Tcontext_dense", forms.context.dense.size(), "context_dense_keys",
                             context_dense.size()));
    MR_RETURN_IF_ERROR(check("feature_list_sparse_types", forms.sparse_lists.size(),
                             "feature_list_sparse_keys", list.size()));
    MR_RETURN_IF_ERROR(check("feature_list_dense_types", forms.dense_lists.size(),
                             "feature_list_dense_keys", list_dense.size()));
    context.insert(context.end(), context_dense.begin(), context_dense.end());
    list.insert(list.end(), list_dense.begin(), list_dense.end());
    MR_ASSIGN_OR_RETURN(context_keys, FeatureKeys::Make(std::move(context)));
    MR_ASSIGN_OR_RETURN(lists.keys, FeatureKeys::Make(std::move(list)));
    MR_ASSIGN_OR_RETURN(lists.may_be_missing, MayBeMissing(*lists.keys, forms, assumed_empty));
    return absl::OkStatus();
  }

  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape serialized, c->InputWithRank(0, 1, "serialized"));
    MR_ASSIGN_OR_RETURN(const PartialShape names, c->InputWithRank(1, 1, "debug_name"));
    const int64_t batch = serialized.dim(0);
    if (names.dim(0) > 0 && batch >= 0 && names.dim(0) != batch) {
      return InvalidArgument("debug_name must be empty or have one element for each of the ", batch,
                             " examples, got ", names.dim(0));
    }
    MR_RETURN_IF_ERROR(CheckDefaults(c, forms, 2));
    return SetShapes(c, forms, outputs, Batched::kYes, batch);
  }
};

Status RunParseSequence(KernelContext* ctx, const SequenceRule& rule) {
  const int dense = static_cast<int>(rule.forms.context.dense.size());
  const std::vector<absl::string_view> serialized = Serialized(ctx);
  const ExampleInputs inputs = {.serialized = serialized,
                                .names = ctx->input(1).raw<std::string>(),
                                .dense_defaults = ctx->inputs({2, 2 + dense})};
  MR_RETURN_IF_ERROR(
      ParseContext(ctx, rule.forms.context, *rule.context_keys, inputs, rule.outputs.context));
  return ListParser(ctx, rule.forms, rule.lists, inputs, rule.outputs).Run();
}

constexpr char kCounts[] =
    "Ncontext_sparse: int >= 0 = 0; Ncontext_dense: int >= 0 = 0; "
    "Nfeature_list_sparse: int >= 0 = 0; Nfeature_list_dense: int >= 0 = 0; "
    "context_sparse_types: list({float, int64, string}) >= 0 = []; "
    "Tcontext_dense: list({float, int64, string}) >= 0 = []; "
    "feature_list_dense_types: list({float, int64, string}) >= 0 = []; "
    "context_dense_shapes: list(shape) >= 0 = []; "
    "feature_list_sparse_types: list({float, int64, string}) >= 0 = []; "
    "feature_list_dense_shapes: list(shape) >= 0 = []";
constexpr char kResults[] =
    "context_sparse_indices: Ncontext_sparse * int64, "
    "context_sparse_values: context_sparse_types, "
    "context_sparse_shapes: Ncontext_sparse * int64, context_dense_values: Tcontext_dense, "
    "feature_list_sparse_indices: Nfeature_list_sparse * int64, "
    "feature_list_sparse_values: feature_list_sparse_types, "
    "feature_list_sparse_shapes: Nfeature_list_sparse * int64, "
    "feature_list_dense_values: feature_list_dense_types";

const OpRegistration kParseSequenceExample =
    OpSpec("ParseSequenceExample",
           absl::StrCat("serialized: string, debug_name: string, "
                        "context_dense_defaults: Tcontext_dense -> ",
                        kResults, ", feature_list_dense_lengths: Nfeature_list_dense * int64"),
           absl::StrCat("feature_list_dense_missing_assumed_empty: list(string) >= 0; "
                        "context_sparse_keys: list(string) >= 0; "
                        "context_dense_keys: list(string) >= 0; "
                        "feature_list_sparse_keys: list(string) >= 0; "
                        "feature_list_dense_keys: list(string) >= 0; ",
                        kCounts))
        .NotDifferentiable()
        .With(RuledKernelFor<SequenceRule>(RunParseSequence));

// --- ParseSingleSequenceExample ------------------------------------------------------------------

// The keys are inputs.
struct SingleSequenceRule {
  SequenceForms forms;
  SequenceOutputsAt outputs;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadForms(attrs, &forms));
    outputs = OutputsInOrder(forms);
    return absl::OkStatus();
  }

  static constexpr int kAssumedEmpty = 1, kFirstContextKey = 2;
  int FirstListKey() const { return kFirstContextKey + static_cast<int>(forms.context.size()); }
  int FirstDefault() const { return FirstListKey() + static_cast<int>(forms.num_lists()); }
  int NameInput() const { return FirstDefault() + static_cast<int>(forms.context.dense.size()); }

  Status operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "serialized").status());
    MR_RETURN_IF_ERROR(
        c->InputWithRank(kAssumedEmpty, 1, "feature_list_dense_missing_assumed_empty").status());
    for (int i = kFirstContextKey; i < FirstDefault(); ++i) {
      MR_RETURN_IF_ERROR(c->InputWithRank(i, 0, "keys").status());
    }
    MR_RETURN_IF_ERROR(c->InputWithRank(NameInput(), 0, "debug_name").status());
    MR_RETURN_IF_ERROR(CheckDefaults(c, forms, FirstDefault()));
    return SetShapes(c, forms, outputs, Batched::kNo, 1);
  }
};

class SingleSequenceKernel : public RuledKernel<SingleSequenceRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    const SequenceForms& forms = rule().forms;
    const auto keys_of = [&](int begin, int end) {
      std::vector<absl::string_view> keys;
      for (int i = begin; i < end; ++i) keys.push_back(ctx->input(i).raw_scalar<std::string>());
      return keys;
    };
    const int first_list = rule().FirstListKey(), first_default = rule().FirstDefault();
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const FeatureKeys> context,
                        context_keys_.Get(keys_of(Rule::kFirstContextKey, first_list)));
    ListKeys lists;
    MR_ASSIGN_OR_RETURN(lists.keys, list_keys_.Get(keys_of(first_list, first_default)));
    MR_ASSIGN_OR_RETURN(
        lists.may_be_missing,
        MayBeMissing(*lists.keys, forms, ctx->input(Rule::kAssumedEmpty).raw<std::string>()));
    const absl::Span<const std::string> name = ctx->input(rule().NameInput()).raw<std::string>();
    const std::vector<absl::string_view> serialized = Serialized(ctx);
    const ExampleInputs inputs = {
        .serialized = serialized,
        .names = name[0].empty() ? absl::Span<const std::string>() : name,
        .dense_defaults = ctx->inputs({first_default, rule().NameInput()}),
        .batched = Batched::kNo};
    MR_RETURN_IF_ERROR(ParseContext(ctx, forms.context, *context, inputs, rule().outputs.context));
    return ListParser(ctx, forms, lists, inputs, rule().outputs).Run();
  }

 private:
  using Rule = SingleSequenceRule;
  const LastFeatureKeys context_keys_, list_keys_;
};

const OpRegistration kParseSingleSequenceExample =
    OpSpec("ParseSingleSequenceExample",
           absl::StrCat("serialized: string, feature_list_dense_missing_assumed_empty: string, "
                        "context_sparse_keys: Ncontext_sparse * string, "
                        "context_dense_keys: Ncontext_dense * string, "
                        "feature_list_sparse_keys: Nfeature_list_sparse * string, "
                        "feature_list_dense_keys: Nfeature_list_dense * string, "
                        "context_dense_defaults: Tcontext_dense, debug_name: string -> ",
                        kResults),
           kCounts)
        .NotDifferentiable()
        .With(KernelFor<SingleSequenceKernel>());

}  // namespace
}  // namespace millrace

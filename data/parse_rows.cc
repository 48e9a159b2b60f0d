// SPDX-License-Identifier: Apache-2.0
#include "data/parse_rows.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/arena.h"
#include "data/example_batch.h"

namespace millrace::data {
namespace {

class ParseRowsFunction : public RowFunction {
 public:
  ParseRowsFunction(ExampleForms forms, std::shared_ptr<const FeatureKeys> keys,
                    std::vector<Tensor> defaults)
      : forms_(std::move(forms)), keys_(std::move(keys)), defaults_(std::move(defaults)) {}
  std::string Name() const override { return "ParseExampleRows"; }

  StatusOr<ElementSpec> OutputSpec(const ElementSpec& input) const override {
    PartialShape shape;
    if (!input.empty()) {
      if (input.size() != 1 || input[0].dtype != DT_STRING) {
        return InvalidArgument(Name(), ": elements must be one string component, got ",
                               SpecText(input));
      }
      shape = input[0].shape;
    }
    ElementSpec spec;
    for (size_t f = 0; f < forms_.dense.size(); ++f) {
      PartialShape whole;
      if (shape.has_rank()) {
        std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
        dims.insert(dims.end(), forms_.dense[f].shape.begin(), forms_.dense[f].shape.end());
        MR_ASSIGN_OR_RETURN(whole, PartialShape::Make(dims));
      }
      spec.push_back({forms_.dense[f].dtype, whole, keys_->keys()[f]});
    }
    return spec;
  }

  StatusOr<Element> Call(const Element& element, Arena* arena) const override {
    if (element.size() != 1 || element[0].dtype() != DT_STRING) {
      return InvalidArgument(Name(), ": elements must be one string component, got ",
                             SpecText(SpecOf(element)));
    }
    const absl::Span<const std::string> texts = element[0].raw<std::string>();
    const std::vector<absl::string_view> examples(texts.begin(), texts.end());
    Element parsed;
    MR_RETURN_IF_ERROR(Parse(examples, INT64_MAX, element[0].shape(), arena, &parsed, nullptr));
    return parsed;
  }

  Status CallBlock(const Block& in, Arena* arena, Block* out, Status* error) const override {
    if (in.columns.size() != 1) {
      return InvalidArgument(Name(), ": elements must be one string component, got ",
                             in.columns.size());
    }
    const Column& column = in.columns[0];
    std::vector<absl::string_view> copied;
    const std::vector<absl::string_view>* examples = &column.strings;
    Shape shape = Shape::Vector(column.strings.size());
    if (column.stacked.has_value()) {
      if (column.stacked.dtype() != DT_STRING) {
        return InvalidArgument(Name(), ": elements must be strings, got ", column.stacked.dtype());
      }
      shape = column.stacked.shape();
      const absl::Span<const std::string> texts = column.stacked.raw<std::string>();
      copied.assign(texts.begin(), texts.end());
      examples = &copied;
    }
    const int64_t per_row = std::max<int64_t>(shape.NumElements(1, shape.rank()), 1);
    Element parsed;
    int64_t good = 0;
    *error = Parse(*examples, per_row, shape, arena, &parsed, &good);
    // Without the tensors it is no row's fault.
    if (!error->ok() && parsed.size() != forms_.dense.size()) return *error;
    out->columns.clear();
    out->rows = error->ok() ? in.rows : good / per_row;
    for (Tensor& tensor : parsed) {
      out->columns.push_back(
          {.stacked = error->ok() ? std::move(tensor) : tensor.Rows(0, out->rows)});
    }
    return absl::OkStatus();
  }

 private:
  // The components of examples that `shape` says how they stand.
  Status Parse(absl::Span<const absl::string_view> examples, int64_t count_to, const Shape& shape,
               Arena* arena, Element* parsed, int64_t* num_good) const {
    std::vector<Tensor> flat(forms_.dense.size());
    const ExampleInputs inputs = {
        .serialized = examples, .count_to = count_to, .dense_defaults = defaults_};
    const auto allocate = [&](int i, const Shape& of_batch) -> StatusOr<Tensor*> {
      Tensor& tensor = flat[static_cast<size_t>(i)];
      MR_ASSIGN_OR_RETURN(tensor,
                          Tensor::Allocate(forms_.dense[static_cast<size_t>(i)].dtype, of_batch));
      return &tensor;
    };
    const Status status =
        ParseExamples(forms_, *keys_, inputs, ExampleOutputs(), arena, allocate, num_good);
    if (!status.ok() && num_good == nullptr) return status;
    for (size_t f = 0; f < flat.size(); ++f) {
      if (!flat[f].has_value()) return status;
      std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
      dims.insert(dims.end(), forms_.dense[f].shape.begin(), forms_.dense[f].shape.end());
      MR_ASSIGN_OR_RETURN(const Shape whole, Shape::Make(dims));
      MR_ASSIGN_OR_RETURN(Tensor reshaped, flat[f].Reshaped(whole));
      parsed->push_back(std::move(reshaped));
    }
    return status;
  }

  const ExampleForms forms_;
  const std::shared_ptr<const FeatureKeys> keys_;
  const std::vector<Tensor> defaults_;
};

}  // namespace

StatusOr<std::shared_ptr<const RowFunction>> ParseExampleRows(const FeatureSpecs& specs) {
  constexpr absl::string_view kWhere = "ParseExampleRows";
  if (specs.empty()) {
    return InvalidArgument(kWhere, ": there must be at least one feature, got none");
  }
  ExampleForms forms;
  std::vector<std::string> keys;
  std::vector<Tensor> defaults;
  for (const auto& [name, spec] : specs) {
    const FixedLenFeature* const feature = std::get_if<FixedLenFeature>(&spec);
    if (feature == nullptr) {
      return InvalidArgument(kWhere, ": feature '", name,
                             "' must be a FixedLenFeature, as rows have one shape, got another");
    }
    MR_ASSIGN_OR_RETURN(Tensor value, DefaultOf(kWhere, name, *feature));
    MR_ASSIGN_OR_RETURN(DenseForm form, DenseForm::Make(name, 0, feature->dtype, feature->shape));
    forms.dense.push_back(std::move(form));
    keys.push_back(name);
    defaults.push_back(std::move(value));
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const FeatureKeys> found, FeatureKeys::Make(std::move(keys)));
  return std::make_shared<const ParseRowsFunction>(std::move(forms), std::move(found),
                                                   std::move(defaults));
}

}  // namespace millrace::data

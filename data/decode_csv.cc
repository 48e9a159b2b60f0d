// SPDX-License-Identifier: Apache-2.0
#include "data/decode_csv.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/mutex.h"
#include "data/csv.h"
#include "runtime/kernel.h"
#include "runtime/step_context.h"

namespace millrace {
namespace {

struct DecodeCSVRule {
  data::CsvOptions options;  // without the defaults, which are inputs
  size_t num_fields = 0;

  Status Init(const NodeAttrs& attrs) {
    std::vector<DType> types;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "OUT_TYPE", &types, "field_delim", &options.field_delim,
                                 "use_quote_delim", &options.use_quote_delim, "na_value",
                                 &options.na_value, "select_cols", &options.select_cols));
    num_fields = types.size();
    if (options.field_delim.size() != 1) {
      return InvalidArgument("field_delim should be only 1 char, got '", options.field_delim, "'");
    }
    const std::vector<int64_t>& cols = options.select_cols;
    if (!cols.empty() && cols.size() != types.size()) {
      return InvalidArgument("select_cols should match output size, got ", cols.size(), " for ",
                             types.size());
    }
    if (std::adjacent_find(cols.begin(), cols.end(), std::greater_equal<>()) != cols.end()) {
      return absl::InvalidArgumentError("select_cols should be strictly increasing indices");
    }
    if (!cols.empty() && cols.front() < 0) {
      return InvalidArgument("select_cols should be non-negative indices, got ", cols.front());
    }
    return absl::OkStatus();
  }

  Status operator()(RuleContext* c) const {
    for (int i = 1; i < c->num_inputs(); ++i) {
      const PartialShape& shape = c->input(i);
      if (!shape.has_rank() || shape.rank() == 0) continue;
      if (shape.rank() > 1) {
        return InvalidArgument(
            "Shape of a default must be a length-0 or length-1 vector, or a scalar, got ", shape,
            " for field ", i - 1);
      }
      if (shape.dim(0) <= 1) continue;
      return InvalidArgument("There should only be 1 default per field but field ", i - 1, " has ",
                             shape.dim(0));
    }
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(0));
    return absl::OkStatus();
  }
};

// The parser of the step before: mostly the defaults are constants, the same buffers in each step.
class LastCsvParser {
 public:
  StatusOr<std::shared_ptr<const data::CsvParser>> Get(const data::CsvOptions& options,
                                                       absl::Span<const Tensor> defaults) const {
    {
      MutexLock lock(&mu_);
      if (parser_ != nullptr && std::equal(defaults.begin(), defaults.end(), defaults_.begin(),
                                           defaults_.end(), IsSame)) {
        return parser_;
      }
    }
    data::CsvOptions with_defaults = options;
    with_defaults.defaults.assign(defaults.begin(), defaults.end());
    MR_ASSIGN_OR_RETURN(data::CsvParser made, data::CsvParser::Make(std::move(with_defaults)));
    auto parser = std::make_shared<const data::CsvParser>(std::move(made));
    MutexLock lock(&mu_);
    parser_ = parser;
    defaults_.assign(defaults.begin(), defaults.end());
    return parser;
  }

 private:
  static bool IsSame(const Tensor& a, const Tensor& b) {
    if (a.num_elements() != b.num_elements() || a.dtype() != b.dtype()) return false;
    return a.num_elements() == 0 || a.raw_data() == b.raw_data();
  }

  mutable Mutex mu_;
  mutable std::shared_ptr<const data::CsvParser> parser_ ABSL_GUARDED_BY(mu_);
  mutable std::vector<Tensor> defaults_ ABSL_GUARDED_BY(mu_);  // keeps the buffers
};

class DecodeCSVKernel : public RuledKernel<DecodeCSVRule> {
 protected:
  Status Run(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const data::CsvParser> parser,
                        last_.Get(rule().options, ctx->inputs({1, ctx->num_inputs()})));
    const absl::Span<const std::string> texts = ctx->input(0).raw<std::string>();
    const std::vector<absl::string_view> records(texts.begin(), texts.end());
    std::vector<Tensor> columns;
    for (int i = 0; i < ctx->num_outputs(); ++i) {
      MR_ASSIGN_OR_RETURN(Tensor * column, ctx->AllocateOutput(i));
      columns.push_back(*column);  // the same memory
    }
    Status error;
    const int64_t all = static_cast<int64_t>(records.size());
    const int64_t good = parser->Parse(records, std::max<int64_t>(all, 1), ctx->step().arena,
                                       absl::MakeSpan(columns), &error);
    return good == all ? absl::OkStatus() : error;
  }

 private:
  const LastCsvParser last_;
};

const OpRegistration kDecodeCSV =
    OpSpec("DecodeCSV", "records: string, record_defaults: OUT_TYPE -> output: OUT_TYPE",
           "OUT_TYPE: list({float, double, int32, int64, string}) >= 1; "
           "field_delim: string = ','; use_quote_delim: bool = true; na_value: string = ''; "
           "select_cols: list(int) = []")
        .With(KernelFor<DecodeCSVKernel>())
        .NotDifferentiable();

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "graph/op_registry.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <list>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/did_you_mean.h"
#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/shape.h"
#include "core/snapshot_registry.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "graph/pending_registrations.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {
namespace {

using tensorflow::AttrValue;
using tensorflow::OpDef;

// The words for sets of types, in the order in which TensorFlow's own list has them.
constexpr DType kNumberTypes[] = {DT_FLOAT,  DT_DOUBLE,    DT_INT32,  DT_UINT8,      DT_INT16,
                                  DT_INT8,   DT_COMPLEX64, DT_INT64,  DT_QINT8,      DT_QUINT8,
                                  DT_QINT32, DT_BFLOAT16,  DT_UINT16, DT_COMPLEX128, DT_HALF,
                                  DT_UINT32, DT_UINT64};
constexpr DType kRealNumberTypes[] = {DT_FLOAT,  DT_DOUBLE, DT_INT32,  DT_UINT8,
                                      DT_INT16,  DT_INT8,   DT_INT64,  DT_BFLOAT16,
                                      DT_UINT16, DT_HALF,   DT_UINT32, DT_UINT64};
constexpr DType kQuantizedTypes[] = {DT_QINT8, DT_QUINT8, DT_QINT32, DT_QINT16, DT_QUINT16};

}  // namespace

absl::Span<const DType> TypesOfWord(absl::string_view word) {
  if (word == "numbertype" || word == "numerictype") return kNumberTypes;
  if (word == "realnumbertype" || word == "realnumerictype") return kRealNumberTypes;
  if (word == "quantizedtype") return kQuantizedTypes;
  return {};
}

namespace {

// Reads a spec from left to right, skipping blanks.
class SpecReader {
 public:
  explicit SpecReader(absl::string_view text) : rest_(text) {}

  absl::string_view rest() {
    rest_ = absl::StripAsciiWhitespace(rest_);
    return rest_;
  }
  bool AtEnd() { return rest().empty(); }
  bool Consume(absl::string_view token) {
    rest();
    return absl::ConsumePrefix(&rest_, token);
  }
  // [A-Za-z_][A-Za-z0-9_]*, or "" when there is none.
  absl::string_view Word() {
    rest();
    size_t n = 0;
    while (n < rest_.size() &&
           (absl::ascii_isalpha(static_cast<unsigned char>(rest_[n])) || rest_[n] == '_' ||
            (n > 0 && absl::ascii_isdigit(static_cast<unsigned char>(rest_[n]))))) {
      ++n;
    }
    absl::string_view word = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return word;
  }
  // As Word(), left where it is.
  absl::string_view PeekWord() {
    const absl::string_view saved = rest();
    absl::string_view word = Word();
    rest_ = saved;
    return word;
  }
  bool Int(int64_t* value) {
    rest();
    size_t n = !rest_.empty() && rest_[0] == '-' ? 1 : 0;
    while (n < rest_.size() && absl::ascii_isdigit(static_cast<unsigned char>(rest_[n]))) ++n;
    if (!absl::SimpleAtoi(rest_.substr(0, n), value)) return false;
    rest_.remove_prefix(n);
    return true;
  }
  // 'text' or "text" without escapes.
  bool Quoted(std::string* value) {
    rest();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return false;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) return false;
    *value = std::string(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return true;
  }

 private:
  absl::string_view rest_;
};

class KeepFirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string& message) override {
    if (text_.empty()) text_ = message;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The field of AttrValue (and of its list) that holds a value of this kind; "" for no kind.
absl::string_view FieldOfKind(absl::string_view kind) {
  if (kind == "string") return "s";
  if (kind == "int") return "i";
  if (kind == "float") return "f";
  if (kind == "bool") return "b";
  if (kind == "type" || kind == "shape" || kind == "tensor" || kind == "func") return kind;
  return "";
}

// "type" -> false, "type"; "list(type)" -> true, "type".
bool SplitListKind(absl::string_view kind, absl::string_view* element) {
  *element = kind;
  if (!absl::ConsumePrefix(element, "list(")) return false;
  absl::ConsumeSuffix(element, ")");
  return true;
}

Status ParseDefault(absl::string_view kind, absl::string_view text, AttrValue* value) {
  absl::string_view element;
  const bool is_list = SplitListKind(kind, &element);
  std::string proto;
  if (is_list) {
    if (!absl::StartsWith(text, "[")) {
      return InvalidArgument("default of ", kind, " must be written [a, b], got '", text, "'");
    }
    proto = absl::StrCat("list { ", FieldOfKind(element), ": ", text, " }");
  } else if (absl::StartsWith(text, "{")) {
    proto = absl::StrCat(FieldOfKind(element), " ", text);
  } else {
    proto = absl::StrCat(FieldOfKind(element), ": ", text);
  }
  google::protobuf::TextFormat::Parser parser;
  KeepFirstError errors;
  parser.RecordErrorsTo(&errors);
  if (!parser.ParseFromString(proto, value)) {
    return InvalidArgument("default must be a ", kind, ", got '", text, "' (", errors.text(), ")");
  }
  return absl::OkStatus();
}

Status ParseAttr(absl::string_view spec, OpDef* def) {
  SpecReader in(spec);
  OpDef::AttrDef* attr = def->add_attr();
  attr->set_name(std::string(in.Word()));
  if (attr->name().empty() || !in.Consume(":")) {
    return absl::InvalidArgumentError("must have the form 'name: type'");
  }
  const bool is_list = in.Consume("list(");
  std::string kind;
  AttrValue::ListValue* allowed = nullptr;
  auto allow_types = [&](absl::Span<const DType> types) {
    if (allowed == nullptr) allowed = attr->mutable_allowed_values()->mutable_list();
    for (DType t : types) allowed->add_type(static_cast<tensorflow::DataType>(t));
  };
  if (in.Consume("{")) {
    std::string quoted;
    while (!in.Consume("}")) {
      if (in.Quoted(&quoted)) {
        if (kind == "type")
          return absl::InvalidArgumentError("a set must not mix types and strings");
        kind = "string";
        attr->mutable_allowed_values()->mutable_list()->add_s(quoted);
      } else {
        const std::string word(in.Word());
        if (kind == "string") {
          return absl::InvalidArgumentError("a set must not mix types and strings");
        }
        kind = "type";
        if (absl::Span<const DType> types = TypesOfWord(word); !types.empty()) {
          allow_types(types);
        } else {
          StatusOr<DType> type = DTypeFromName(word);
          if (!type.ok() || *type == DT_INVALID || IsRef(*type)) {
            return InvalidArgument("a set must name types, got '", word, "' before '", in.rest(),
                                   "'");
          }
          allow_types({*type});
        }
      }
      if (!in.Consume(",") && !absl::StartsWith(in.rest(), "}")) {
        return InvalidArgument("a set must be closed by '}', got '", in.rest(), "'");
      }
    }
    if (kind.empty()) return absl::InvalidArgumentError("a set must not be empty");
  } else {
    const std::string word(in.Word());
    if (absl::Span<const DType> types = TypesOfWord(word); !types.empty()) {
      kind = "type";
      allow_types(types);
    } else if (!FieldOfKind(word).empty()) {
      kind = word;
    } else {
      return InvalidArgument(
          "type must be string, int, float, bool, type, shape, tensor, func or a set, got '", word,
          "'");
    }
  }
  if (is_list) {
    if (!in.Consume(")")) return absl::InvalidArgumentError("list( must be closed by ')'");
    kind = absl::StrCat("list(", kind, ")");
  }
  attr->set_type(kind);
  if (in.Consume(">=")) {
    int64_t minimum = 0;
    if (!is_list && kind != "int") {
      return absl::InvalidArgumentError("only an int or a list may have a minimum");
    }
    if (!in.Int(&minimum)) {
      return InvalidArgument("minimum must be an integer, got '", in.rest(), "'");
    }
    attr->set_has_minimum(true);
    attr->set_minimum(minimum);
  }
  if (in.Consume("=")) {
    MR_RETURN_IF_ERROR(ParseDefault(kind, in.rest(), attr->mutable_default_value()));
    MR_RETURN_IF_ERROR(ValidateAttrValue(*attr, attr->default_value()));
  } else if (!in.AtEnd()) {
    return InvalidArgument("must end here, got '", in.rest(), "'");
  }
  return absl::OkStatus();
}

OpDef::AttrDef* FindAttr(OpDef* def, absl::string_view name) {
  for (OpDef::AttrDef& attr : *def->mutable_attr()) {
    if (attr.name() == name) return &attr;
  }
  return nullptr;
}

Status ParseArg(absl::string_view spec, OpDef* def, OpDef::ArgDef* arg) {
  SpecReader in(spec);
  arg->set_name(std::string(in.Word()));
  if (arg->name().empty() || !in.Consume(":")) {
    return absl::InvalidArgumentError("must have the form 'name: type'");
  }
  int open = 0;
  auto consume_ref = [&] {
    if (!in.Consume("Ref(")) return;
    arg->set_is_ref(true);
    ++open;
  };
  // An attr that sizes an argument is at least 1 unless its own spec says otherwise.
  auto set_minimum = [](OpDef::AttrDef* attr) {
    if (attr->has_minimum()) return;
    attr->set_has_minimum(true);
    attr->set_minimum(1);
  };
  consume_ref();
  std::string word(in.Word());
  if (in.Consume("*")) {
    OpDef::AttrDef* count = FindAttr(def, word);
    if (count == nullptr || count->type() != "int") {
      return InvalidArgument("'", word, "' must be an attr of type int");
    }
    set_minimum(count);
    arg->set_number_attr(word);
    consume_ref();
    word = std::string(in.Word());
  }
  if (OpDef::AttrDef* attr = FindAttr(def, word); attr != nullptr) {
    if (attr->type() == "type") {
      arg->set_type_attr(word);
    } else if (attr->type() == "list(type)" && arg->number_attr().empty()) {
      set_minimum(attr);
      arg->set_type_list_attr(word);
    } else {
      return InvalidArgument("attr '", word, "' must be a type",
                             arg->number_attr().empty() ? " or list(type)" : "", ", got ",
                             attr->type());
    }
  } else {
    StatusOr<DType> type = DTypeFromName(word);
    if (!type.ok() || *type == DT_INVALID || IsRef(*type)) {
      return InvalidArgument("'", word, "' must be a type or an attr of the op");
    }
    arg->set_type(static_cast<tensorflow::DataType>(*type));
  }
  for (; open > 0; --open) {
    if (!in.Consume(")")) return absl::InvalidArgumentError("Ref( must be closed by ')'");
  }
  if (!in.AtEnd()) {
    return InvalidArgument("must end here, got '", in.rest(), "'");
  }
  return absl::OkStatus();
}

Status RegisteredTwice(const std::string& op) {
  return absl::AlreadyExistsError(
      absl::StrCat("Op '", op, "': name must be registered once, got two"));
}

// All ops at one moment.
struct Ops {
  HashMap<std::string, std::shared_ptr<const OpEntry>> entries;
  HashMap<std::string, Status> errors;  // the first of each op name
  Status first_error;
};

void AddToOps(const std::list<OpSpec>& specs, Ops* next) {
  const auto keep_error = [next](const std::string& op, const Status& error) {
    next->errors.emplace(op, error);
    if (next->first_error.ok()) next->first_error = error;
  };
  HashMap<std::string, std::shared_ptr<const OpEntry>> fresh;
  for (const OpSpec& spec : specs) {
    StatusOr<OpEntry> entry = spec.Build();
    if (!entry.ok()) {
      keep_error(spec.name(), entry.status());
    } else if (next->entries.contains(spec.name()) || fresh.contains(spec.name())) {
      keep_error(spec.name(), RegisteredTwice(spec.name()));
    } else {
      fresh.emplace(spec.name(), std::make_shared<const OpEntry>(*std::move(entry)));
    }
  }
  for (auto& [name, entry] : fresh) {
    // An op with any error is not usable: look-ups report it.
    if (!next->errors.contains(name)) next->entries.emplace(name, std::move(entry));
  }
}

using OpRegistry = SnapshotRegistry<OpSpec, Ops>;
OpRegistry& Registry() {
  static OpRegistry* const registry = new OpRegistry(&AddToOps);  // ops may be asked for at exit
  return *registry;
}

// Has the oneof of `value` (or every element of its list) the field of `kind`?
bool HasKind(const AttrValue& value, absl::string_view kind) {
  absl::string_view element;
  if (!SplitListKind(kind, &element)) {
    switch (value.value_case()) {
      case AttrValue::kS:
        return kind == "string";
      case AttrValue::kI:
        return kind == "int";
      case AttrValue::kF:
        return kind == "float";
      case AttrValue::kB:
        return kind == "bool";
      case AttrValue::kType:
        return kind == "type";
      case AttrValue::kShape:
        return kind == "shape";
      case AttrValue::kTensor:
        return kind == "tensor";
      case AttrValue::kFunc:
        return kind == "func";
      default:
        return false;
    }
  }
  if (value.value_case() != AttrValue::kList) return false;
  const AttrValue::ListValue& list = value.list();
  const std::pair<absl::string_view, int> counts[] = {
      {"string", list.s_size()},  {"int", list.i_size()},        {"float", list.f_size()},
      {"bool", list.b_size()},    {"type", list.type_size()},    {"shape", list.shape_size()},
      {"func", list.func_size()}, {"tensor", list.tensor_size()}};
  return std::all_of(std::begin(counts), std::end(counts),
                     [&](const auto& c) { return c.second == 0 || c.first == element; });
}

std::string KindName(const AttrValue& value) {
  switch (value.value_case()) {
    case AttrValue::kS:
      return "string";
    case AttrValue::kI:
      return "int";
    case AttrValue::kF:
      return "float";
    case AttrValue::kB:
      return "bool";
    case AttrValue::kType:
      return "type";
    case AttrValue::kShape:
      return "shape";
    case AttrValue::kTensor:
      return "tensor";
    case AttrValue::kFunc:
      return "func";
    case AttrValue::kPlaceholder:
      return "placeholder";
    case AttrValue::kList:
      for (const char* kind : {"list(string)", "list(int)", "list(float)", "list(bool)",
                               "list(type)", "list(shape)", "list(tensor)", "list(func)"}) {
        if (HasKind(value, kind)) return kind;
      }
      return "list of several types";
    case AttrValue::VALUE_NOT_SET:
      break;
  }
  return "no value";
}

int ListSize(const AttrValue::ListValue& list) {
  return std::max({list.s_size(), list.i_size(), list.f_size(), list.b_size(), list.type_size(),
                   list.shape_size(), list.tensor_size(), list.func_size()});
}

}  // namespace

OpSpec::OpSpec(absl::string_view name) : name_(name) {}

OpSpec::OpSpec(absl::string_view name, absl::string_view arguments, absl::string_view attrs)
    : name_(name) {
  const auto split = [](absl::string_view text, char separator) {
    std::vector<std::string> parts;
    for (absl::string_view part : absl::StrSplit(text, separator)) {
      part = absl::StripAsciiWhitespace(part);
      if (!part.empty()) parts.emplace_back(part);
    }
    return parts;
  };
  const size_t arrow = arguments.find("->");
  inputs_ = split(arguments.substr(0, arrow), ',');
  if (arrow != absl::string_view::npos) outputs_ = split(arguments.substr(arrow + 2), ',');
  attrs_ = split(attrs, ';');
}

OpSpec& OpSpec::Input(absl::string_view spec) {
  inputs_.emplace_back(spec);
  return *this;
}
OpSpec& OpSpec::Output(absl::string_view spec) {
  outputs_.emplace_back(spec);
  return *this;
}
OpSpec& OpSpec::Attr(absl::string_view spec) {
  attrs_.emplace_back(spec);
  return *this;
}
OpSpec& OpSpec::Stateful() {
  stateful_ = true;
  return *this;
}
OpSpec& OpSpec::Commutative() {
  commutative_ = true;
  return *this;
}
OpSpec& OpSpec::Aggregate() {
  aggregate_ = true;
  return *this;
}
OpSpec& OpSpec::AllowsUninitializedInput() {
  allows_uninitialized_input_ = true;
  return *this;
}
OpSpec& OpSpec::MakesVariable() {
  traits_.makes_variable = true;
  return *this;
}
OpSpec& OpSpec::TakesVariable(int input, VariableUse use) {
  traits_.variable_use = use;
  traits_.variable_begin = input;
  traits_.variable_end = input + 1;
  return *this;
}
OpSpec& OpSpec::TakesVariablesFrom(int first_input, VariableUse use) {
  TakesVariable(first_input, use);
  traits_.variable_end = std::numeric_limits<int>::max();
  return *this;
}
OpSpec& OpSpec::SameEachStep() {
  traits_.same_each_step = true;
  return *this;
}
OpSpec& OpSpec::DescribesShape() {
  traits_.describes_shape = true;
  return *this;
}
OpSpec& OpSpec::UsesFiles() {
  traits_.uses_files = true;
  return *this;
}
OpSpec& OpSpec::Trigger() {
  traits_.is_trigger = true;
  return *this;
}
OpSpec& OpSpec::HandsOn(millrace::HandsOn what) {
  traits_.hands_on = what;
  return *this;
}
OpSpec& OpSpec::ToBeFed(Feeding feeding) {
  traits_.feeding = feeding;
  return *this;
}
OpSpec& OpSpec::WaitsForSteps(millrace::WaitsForSteps when) {
  traits_.waits_for_steps = when;
  return *this;
}
OpSpec& OpSpec::Deprecated(int since_version, absl::string_view explanation) {
  deprecated_since_ = since_version;
  deprecation_ = std::string(explanation);
  return *this;
}
OpSpec& OpSpec::Shape(ShapeFn fn) {
  shape_fn_ = std::move(fn);
  return *this;
}
OpSpec& OpSpec::Gradient(GradientFn fn) {
  gradient_fn_ = std::move(fn);
  differentiability_ = OpEntry::Differentiability::kHasGradient;
  return *this;
}
OpSpec& OpSpec::NotDifferentiable() {
  gradient_fn_ = nullptr;
  differentiability_ = OpEntry::Differentiability::kNotDifferentiable;
  return *this;
}
OpSpec& OpSpec::OnRegistration(std::function<void(const std::string&)> fn) {
  on_registration_.push_back(std::move(fn));
  return *this;
}

StatusOr<OpEntry> OpSpec::Build() const {
  auto owned = std::make_shared<OpDef>();
  OpDef& def = *owned;
  const std::string where = absl::StrCat("Op '", name_, "'");
  SpecReader name(name_);
  if (name.Word().empty() || !name.AtEnd()) {
    return InvalidArgument(where, ": name must be letters, digits and '_', got '", name_, "'");
  }
  def.set_name(name_);
  def.set_is_stateful(stateful_);
  def.set_is_commutative(commutative_);
  def.set_is_aggregate(aggregate_);
  def.set_allows_uninitialized_input(allows_uninitialized_input_);
  if (deprecated_since_ != 0 || !deprecation_.empty()) {
    def.mutable_deprecation()->set_version(deprecated_since_);
    def.mutable_deprecation()->set_explanation(deprecation_);
  }
  auto in_spec = [&](absl::string_view part, const std::string& spec, const Status& status) {
    return Prefixed(absl::StrCat(where, ": ", part, " '", spec, "'"), status);
  };
  for (const std::string& spec : attrs_) {
    MR_RETURN_IF_ERROR(in_spec("attr", spec, ParseAttr(spec, &def)));
  }
  for (const std::string& spec : inputs_) {
    MR_RETURN_IF_ERROR(in_spec("input", spec, ParseArg(spec, &def, def.add_input_arg())));
  }
  for (const std::string& spec : outputs_) {
    MR_RETURN_IF_ERROR(in_spec("output", spec, ParseArg(spec, &def, def.add_output_arg())));
  }
  // G15: a name must tell one thing.
  HashMap<std::string, int> seen;
  auto twice = [&](absl::string_view what, const std::string& n) {
    return InvalidArgument(where, ": ", what, " '", n, "' must be declared once, got two");
  };
  for (const OpDef::AttrDef& attr : def.attr()) {
    if (++seen[attr.name()] > 1) return twice("attr", attr.name());
  }
  for (const OpDef::ArgDef& arg : def.input_arg()) {
    if (++seen[arg.name()] > 1) return twice("input", arg.name());
  }
  seen.clear();
  for (const OpDef::ArgDef& arg : def.output_arg()) {
    if (++seen[arg.name()] > 1) return twice("output", arg.name());
  }
  if (!shape_fn_) {
    return InvalidArgument(where, ": must have a shape function");
  }
  if (differentiability_ == OpEntry::Differentiability::kHasGradient && !gradient_fn_) {
    return InvalidArgument(where, ": gradient function must not be empty");
  }
  OpEntry entry(std::move(owned));
  entry.shape_fn = shape_fn_;
  entry.differentiability = differentiability_;
  entry.gradient_fn = gradient_fn_;
  entry.traits = traits_;
  return entry;
}

OpRegistration::OpRegistration(const OpSpec& spec) {
  // A caller that finds the op finds what belongs to it.
  for (const auto& fn : spec.on_registration()) fn(spec.name());
  if (PendingRegistrations* const pending = PendingRegistrations::Current()) {
    pending->AddOp(spec);
  } else {
    Registry().Add(spec);
  }
}

const OpEntry* LookUpOp(absl::string_view name) {
  const Ops& ops = Registry().Read();
  auto it = ops.entries.find(name);
  return it == ops.entries.end() ? nullptr : it->second.get();
}

const OpTraits& TraitsOf(absl::string_view op) {
  static const OpTraits kNone;
  const OpEntry* const entry = LookUpOp(op);
  return entry == nullptr ? kNone : entry->traits;
}

StatusOr<const OpEntry*> FindOp(absl::string_view name) {
  const Ops& ops = Registry().Read();
  if (auto it = ops.entries.find(name); it != ops.entries.end()) return it->second.get();
  if (auto it = ops.errors.find(name); it != ops.errors.end()) return it->second;
  char host[256] = "";
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  DidYouMean best(name);
  for (const OpEntry* const known : AllOps()) best.Consider(known->def.name());
  return absl::NotFoundError(
      absl::StrCat("Op type not registered '", name, "' in binary running on ", host, best.Hint(),
                   "; the op family that has it must be linked into the program, or loaded by "
                   "LoadOpLibrary"));
}

std::vector<const OpEntry*> AllOps() {
  const Ops& ops = Registry().Read();
  std::vector<const OpEntry*> all;
  all.reserve(ops.entries.size());
  for (const auto& [name, entry] : ops.entries) all.push_back(entry.get());
  std::sort(all.begin(), all.end(),
            [](const OpEntry* a, const OpEntry* b) { return a->def.name() < b->def.name(); });
  return all;
}

Status OpRegistrationStatus() { return Registry().Read().first_error; }

// --- A library under load ------------------------------------------------------------------------

namespace {
constinit thread_local PendingRegistrations* current_pending = nullptr;
}  // namespace

PendingRegistrations::Collect::Collect(PendingRegistrations* pending) : outer_(current_pending) {
  current_pending = pending;
}
PendingRegistrations::Collect::~Collect() { current_pending = outer_; }

PendingRegistrations* PendingRegistrations::Current() { return current_pending; }

bool PendingRegistrations::HasOp(absl::string_view name) const {
  return std::any_of(ops_.begin(), ops_.end(),
                     [name](const OpSpec& spec) { return spec.name() == name; });
}

std::vector<std::string> PendingRegistrations::OpNames() const {
  std::vector<std::string> names;
  for (const OpSpec& spec : ops_) names.push_back(spec.name());
  std::sort(names.begin(), names.end());
  return names;
}

Status PendingRegistrations::CheckOps() const {
  const Ops& ops = Registry().Read();
  HashSet<std::string> names;
  std::vector<std::string> known;
  for (const OpSpec& spec : ops_) {
    MR_RETURN_IF_ERROR(spec.Build().status());
    if (!names.insert(spec.name()).second) return RegisteredTwice(spec.name());
    if (ops.entries.contains(spec.name())) known.push_back(spec.name());
  }
  if (known.empty()) return absl::OkStatus();
  std::sort(known.begin(), known.end());
  std::string text = absl::StrCat("op kinds must be new to the program, got '", known[0], "'");
  if (known.size() > 1) {
    absl::StrAppend(&text, " and ", known.size() - 1,
                    " more that it has; a library must not be linked with a copy of the program's "
                    "own ops");
  } else {
    absl::StrAppend(&text, ", which it has");
  }
  return absl::AlreadyExistsError(text);
}

Status PendingRegistrations::Check() const {
  MR_RETURN_IF_ERROR(CheckOps());
  for (const auto& [type, part] : parts_) MR_RETURN_IF_ERROR(part->Check(*this));
  return absl::OkStatus();
}

void PendingRegistrations::Publish() noexcept {
  for (auto& [type, part] : parts_) part->Publish();
  parts_.clear();
  Registry().AddAll(&ops_);
}

void AddDefaultAttrs(const OpDef& op, tensorflow::NodeDef* node) {
  for (const OpDef::AttrDef& attr : op.attr()) {
    if (attr.has_default_value() && !node->attr().contains(attr.name())) {
      (*node->mutable_attr())[attr.name()] = attr.default_value();
    }
  }
}

Status ValidateAttrValue(const OpDef::AttrDef& rule, const AttrValue& value) {
  auto error = [&](const auto&... parts) {
    return InvalidArgument("attr '", rule.name(), "' must ", parts...);
  };
  if (!HasKind(value, rule.type())) {
    return error("be ", rule.type(), ", got ", KindName(value));
  }
  absl::string_view element;
  const bool is_list = SplitListKind(rule.type(), &element);

  auto check_type = [&](int number) -> Status {
    StatusOr<DType> type = DTypeFromNumber(number);
    if (!type.ok()) return error("be a known type, got number ", number);
    if (*type == DT_INVALID) return error("be a type, got DT_INVALID");
    if (IsRef(*type)) return error("not be a reference type, got ", DTypeName(*type));
    if (!rule.has_allowed_values()) return absl::OkStatus();
    std::vector<std::string> names;
    for (int allowed : rule.allowed_values().list().type()) {
      if (allowed == number) return absl::OkStatus();
      names.push_back(DTypeName(static_cast<DType>(allowed)));
    }
    return error("be one of {", absl::StrJoin(names, ", "), "}, got ", DTypeName(*type));
  };
  auto check_string = [&](const std::string& text) -> Status {
    if (!rule.has_allowed_values()) return absl::OkStatus();
    const auto& allowed = rule.allowed_values().list().s();
    if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return absl::OkStatus();
    return error("be one of {'", absl::StrJoin(allowed, "', '"), "'}, got '", text, "'");
  };
  auto check_shape = [&](const tensorflow::TensorShapeProto& shape) -> Status {
    StatusOr<PartialShape> s = PartialShape::FromProto(shape);
    if (!s.ok()) return error("be a legal shape; ", s.status().message());
    return absl::OkStatus();
  };
  if (!is_list) {
    if (element == "type") return check_type(value.type());
    if (element == "string") return check_string(value.s());
    if (element == "shape") return check_shape(value.shape());
    if (element == "int" && rule.has_minimum() && value.i() < rule.minimum()) {
      return error("be >= ", rule.minimum(), ", got ", value.i());
    }
    return absl::OkStatus();
  }
  const AttrValue::ListValue& list = value.list();
  if (rule.has_minimum() && ListSize(list) < rule.minimum()) {
    return error("have at least ", rule.minimum(), " elements, got ", ListSize(list));
  }
  for (int type : list.type()) MR_RETURN_IF_ERROR(check_type(type));
  for (const std::string& s : list.s()) MR_RETURN_IF_ERROR(check_string(s));
  for (const auto& shape : list.shape()) MR_RETURN_IF_ERROR(check_shape(shape));
  return absl::OkStatus();
}

bool OpDefsEqual(const OpDef& a, const OpDef& b, std::string* difference) {
  auto without_documentation = [](OpDef def) {
    def.clear_summary();
    def.clear_description();
    if (def.has_deprecation()) def.mutable_deprecation()->clear_explanation();
    for (OpDef::ArgDef& arg : *def.mutable_input_arg()) arg.clear_description();
    for (OpDef::ArgDef& arg : *def.mutable_output_arg()) arg.clear_description();
    for (OpDef::AttrDef& attr : *def.mutable_attr()) attr.clear_description();
    return def;
  };
  google::protobuf::util::MessageDifferencer differencer;
  if (difference != nullptr) {
    difference->clear();
    differencer.ReportDifferencesToString(difference);
  }
  return differencer.Compare(without_documentation(a), without_documentation(b));
}

}  // namespace millrace

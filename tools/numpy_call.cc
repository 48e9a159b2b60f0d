// SPDX-License-Identifier: Apache-2.0
#include "tools/numpy_call.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/did_you_mean.h"
#include "core/shape.h"

namespace millrace {
namespace {

using Kind = PythonValue::Kind;

constexpr uint64_t kMaxBytes = uint64_t{2} << 30;
constexpr int64_t kMaxListed = 1 << 16;

struct TypeName {
  const char* name;
  DType dtype;
};
// numpy's names, its aliases, and what Python itself calls types.
constexpr TypeName kTypes[] = {
    {"bool", DT_BOOL},           {"bool_", DT_BOOL},        {"bool8", DT_BOOL},
    {"int8", DT_INT8},           {"byte", DT_INT8},         {"int16", DT_INT16},
    {"short", DT_INT16},         {"int32", DT_INT32},       {"intc", DT_INT32},
    {"int64", DT_INT64},         {"int_", DT_INT64},        {"int", DT_INT64},
    {"intp", DT_INT64},          {"longlong", DT_INT64},    {"uint8", DT_UINT8},
    {"ubyte", DT_UINT8},         {"uint16", DT_UINT16},     {"ushort", DT_UINT16},
    {"uint32", DT_UINT32},       {"uintc", DT_UINT32},      {"uint64", DT_UINT64},
    {"uint", DT_UINT64},         {"float16", DT_HALF},      {"half", DT_HALF},
    {"float32", DT_FLOAT},       {"single", DT_FLOAT},      {"float64", DT_DOUBLE},
    {"double", DT_DOUBLE},       {"float_", DT_DOUBLE},     {"float", DT_DOUBLE},
    {"complex64", DT_COMPLEX64}, {"csingle", DT_COMPLEX64}, {"complex128", DT_COMPLEX128},
    {"complex", DT_COMPLEX128},  {"str", DT_STRING},        {"str_", DT_STRING},
    {"bytes", DT_STRING},        {"bytes_", DT_STRING},     {"object", DT_STRING},
    {"object_", DT_STRING},
};
// As text alone.
constexpr TypeName kCodes[] = {
    {"?", DT_BOOL},    {"b1", DT_BOOL},   {"i1", DT_INT8},  {"i2", DT_INT16},
    {"i4", DT_INT32},  {"i8", DT_INT64},  {"u1", DT_UINT8}, {"u2", DT_UINT16},
    {"u4", DT_UINT32}, {"u8", DT_UINT64}, {"f2", DT_HALF},  {"f4", DT_FLOAT},
    {"f8", DT_DOUBLE}, {"f", DT_FLOAT},   {"d", DT_DOUBLE}, {"c8", DT_COMPLEX64},
    {"S", DT_STRING},  {"U", DT_STRING},  {"O", DT_STRING}, {"c16", DT_COMPLEX128},
};

std::optional<DType> Find(absl::Span<const TypeName> types, absl::string_view name) {
  for (const TypeName& type : types) {
    if (name == type.name) return type.dtype;
  }
  return std::nullopt;
}

// --- Arguments -----------------------------------------------------------------------------------

// "np.int64(5)" is the number.
StatusOr<PythonValue> NumberOf(const PythonValue& value) {
  if (value.kind != Kind::kArray || value.array.rank() != 0) return value;
  return ListsOfArray(value.array);
}

// Of one call, by the names of its parameters; null: not given.
class Arguments {
 public:
  static StatusOr<Arguments> Bind(absl::string_view function,
                                  absl::Span<const char* const> parameters, size_t required,
                                  absl::Span<const NumpyArgument> given) {
    Arguments arguments(function);
    arguments.values_.resize(parameters.size(), nullptr);
    for (size_t i = 0; i < given.size(); ++i) {
      size_t place = i;
      if (!given[i].name.empty()) {
        place = static_cast<size_t>(std::find(parameters.begin(), parameters.end(), given[i].name) -
                                    parameters.begin());
      }
      if (place >= parameters.size()) {
        return arguments.Error("arguments",
                               absl::StrCat("be at most ", absl::StrJoin(parameters, ", ")),
                               given[i].name.empty() ? absl::StrCat(given.size(), " of them")
                                                     : absl::StrCat("'", given[i].name, "'"));
      }
      if (arguments.values_[place] != nullptr) {
        return arguments.Error(parameters[place], "be given once", "it again");
      }
      arguments.values_[place] = &given[i].value;
    }
    for (size_t i = 0; i < required; ++i) {
      if (arguments.values_[i] == nullptr) {
        return arguments.Error(parameters[i], "be given", "none");
      }
    }
    return arguments;
  }

  const PythonValue* operator[](size_t place) const { return values_[place]; }

  Status Error(absl::string_view what, absl::string_view rule, absl::string_view got) const {
    return absl::InvalidArgumentError(
        absl::StrCat("np.", function_, ": ", what, " must ", rule, ", got ", got));
  }

  // `fallback` for None and for nothing.
  StatusOr<DType> TypeAt(size_t place, DType fallback) const {
    const PythonValue* const value = values_[place];
    if (value == nullptr || value->kind == Kind::kNone) return fallback;
    std::optional<DType> dtype;
    if (value->kind == Kind::kType) dtype = NumpyType(value->text);
    if (value->kind == Kind::kString) {
      absl::string_view code = value->text;
      dtype = NumpyType(code);
      if (!dtype && !code.empty() && absl::string_view("<=|").find(code[0]) != code.npos) {
        code.remove_prefix(1);
      }
      if (!dtype) dtype = Find(kCodes, code);
    }
    if (!dtype) {
      return Error("dtype", "be a type that tensors have, such as np.float32 or 'int64'",
                   PythonRepr(*value));
    }
    return *dtype;
  }

  // An integer, or a sequence of integers.
  StatusOr<Shape> ShapeAt(size_t place) const {
    MR_ASSIGN_OR_RETURN(const PythonValue value, NumberOf(*values_[place]));
    std::vector<const PythonValue*> dims = {&value};
    if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
      dims.clear();
      for (const PythonValue& item : value.items) dims.push_back(&item);
    }
    std::vector<int64_t> sizes;
    for (const PythonValue* const dim : dims) {
      if (dim->kind != Kind::kInt || dim->integer < 0) {
        return Error("shape", "be integers >= 0", PythonRepr(value));
      }
      sizes.push_back(dim->integer);
    }
    return Shape::Make(sizes);
  }

  Status CheckSize(const Shape& shape, DType dtype) const {
    // A text's own bytes come to it.
    const uint64_t element = dtype == DT_STRING ? sizeof(std::string) : uint64_t{16};
    if (static_cast<uint64_t>(shape.num_elements()) < kMaxBytes / element) return absl::OkStatus();
    return Error("the array", absl::StrCat("have less than ", kMaxBytes / element, " elements"),
                 absl::StrCat(shape.num_elements(), " of shape ", shape.ToString()));
  }

 private:
  explicit Arguments(absl::string_view function) : function_(function) {}

  std::string function_;
  std::vector<const PythonValue*> values_;
};

// --- Functions -----------------------------------------------------------------------------------

PythonValue IntegerValue(int64_t integer) {
  PythonValue value;
  value.kind = Kind::kInt;
  value.integer = integer;
  return value;
}

// Every element is `fill`, which is one number, Boolean or text.
StatusOr<Tensor> Filled(const Arguments& arguments, const Shape& shape, const PythonValue& fill,
                        DType dtype) {
  MR_ASSIGN_OR_RETURN(const Tensor one, TensorFromPython(fill, dtype));
  if (one.num_elements() != 1) {
    return arguments.Error("fill_value", "be one value", PythonRepr(fill));
  }
  MR_RETURN_IF_ERROR(arguments.CheckSize(shape, one.dtype()));
  MR_ASSIGN_OR_RETURN(Tensor result, Tensor::Allocate(one.dtype(), shape));
  if (one.dtype() == DT_STRING) {
    const absl::Span<std::string> to = result.mutable_flat<std::string>();
    std::fill(to.begin(), to.end(), one.flat<std::string>()[0]);
    return result;
  }
  const absl::Span<const char> from = one.bytes();
  const absl::Span<char> to = result.mutable_bytes();
  for (size_t at = 0; at < to.size(); at += from.size()) {
    std::copy(from.begin(), from.end(), to.begin() + static_cast<ptrdiff_t>(at));
  }
  return result;
}

StatusOr<Tensor> ZerosOrOnes(absl::string_view function, int64_t element,
                             absl::Span<const NumpyArgument> given) {
  static constexpr const char* kParameters[] = {"shape", "dtype"};
  MR_ASSIGN_OR_RETURN(const Arguments arguments, Arguments::Bind(function, kParameters, 1, given));
  MR_ASSIGN_OR_RETURN(const Shape shape, arguments.ShapeAt(0));
  MR_ASSIGN_OR_RETURN(const DType dtype, arguments.TypeAt(1, DT_DOUBLE));
  PythonValue fill = IntegerValue(element);
  if (dtype == DT_STRING) {
    fill.kind = Kind::kString;
    fill.text = element == 0 ? "" : absl::StrCat(element);
  }
  return Filled(arguments, shape, fill, dtype);
}

StatusOr<Tensor> Full(absl::Span<const NumpyArgument> given) {
  static constexpr const char* kParameters[] = {"shape", "fill_value", "dtype"};
  MR_ASSIGN_OR_RETURN(const Arguments arguments, Arguments::Bind("full", kParameters, 2, given));
  MR_ASSIGN_OR_RETURN(const Shape shape, arguments.ShapeAt(0));
  MR_ASSIGN_OR_RETURN(const DType dtype, arguments.TypeAt(2, DT_INVALID));
  return Filled(arguments, shape, *arguments[1], dtype);
}

StatusOr<Tensor> Array(absl::string_view function, const char* first,
                       absl::Span<const NumpyArgument> given) {
  const char* const parameters[] = {first, "dtype"};
  MR_ASSIGN_OR_RETURN(const Arguments arguments, Arguments::Bind(function, parameters, 1, given));
  MR_ASSIGN_OR_RETURN(const DType dtype, arguments.TypeAt(1, DT_INVALID));
  const StatusOr<Tensor> array = TensorFromPython(*arguments[0], dtype);
  if (!array.ok()) return Prefixed(absl::StrCat("np.", function), array.status());
  return array;
}

StatusOr<Tensor> Scalar(absl::string_view function, DType dtype,
                        absl::Span<const NumpyArgument> given) {
  static constexpr const char* kParameters[] = {"value"};
  MR_ASSIGN_OR_RETURN(const Arguments arguments, Arguments::Bind(function, kParameters, 1, given));
  const StatusOr<Tensor> array = TensorFromPython(*arguments[0], dtype);
  if (!array.ok()) return Prefixed(absl::StrCat("np.", function), array.status());
  return array;
}

// first + i * delta, in the type in which numpy computes it; integers modulo 2^64.
template <typename T>
StatusOr<Tensor> Progression(T first, T delta, const Shape& shape) {
  MR_ASSIGN_OR_RETURN(Tensor result, Tensor::Allocate(DTypeOf<T>, shape));
  const absl::Span<T> to = result.mutable_flat<T>();
  using Computed = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  const Computed begin = static_cast<Computed>(first), step = static_cast<Computed>(delta);
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<T>(begin + static_cast<Computed>(i) * step);
  }
  return result;
}

// How many of start, start + step, ... come before stop. The numbers are of 64 bits.
int64_t CountBefore(__int128 start, __int128 stop, __int128 step) {
  const __int128 distance = stop - start;
  if (distance == 0 || (distance > 0) != (step > 0)) return 0;
  const __int128 count = (distance + step - (step > 0 ? 1 : -1)) / step;
  return static_cast<int64_t>(std::min<__int128>(count, std::numeric_limits<int64_t>::max()));
}

StatusOr<Tensor> Arange(absl::Span<const NumpyArgument> given) {
  static constexpr const char* kParameters[] = {"start", "stop", "step", "dtype"};
  MR_ASSIGN_OR_RETURN(const Arguments arguments, Arguments::Bind("arange", kParameters, 0, given));
  const PythonValue zero = IntegerValue(0), one = IntegerValue(1);
  PythonValue numbers[3];
  const PythonValue* given_numbers[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (arguments[i] == nullptr) continue;
    MR_ASSIGN_OR_RETURN(numbers[i], NumberOf(*arguments[i]));
    given_numbers[i] = &numbers[i];
  }
  const PythonValue *start = given_numbers[0], *stop = given_numbers[1];
  const PythonValue* const step = given_numbers[2] == nullptr ? &one : given_numbers[2];
  if (stop == nullptr || stop->kind == Kind::kNone) stop = std::exchange(start, nullptr);
  if (start == nullptr) start = &zero;
  if (stop == nullptr) return arguments.Error("stop", "be given", "none");
  bool integers = true;
  const auto number = [&](const PythonValue& value) {
    integers = integers && value.kind != Kind::kFloat;
    return value.kind == Kind::kFloat ? value.real : static_cast<double>(value.integer);
  };
  for (const PythonValue* const value : {start, stop, step}) {
    if (value->kind != Kind::kInt && value->kind != Kind::kFloat && value->kind != Kind::kBool) {
      return arguments.Error("start, stop and step", "be numbers", PythonRepr(*value));
    }
  }
  const double from = number(*start), to = number(*stop), by = number(*step);
  if (by == 0) return arguments.Error("step", "not be 0", PythonRepr(*step));
  int64_t count = 0;
  if (integers) {
    count = CountBefore(start->integer, stop->integer, step->integer);
  } else {
    const double exact = std::ceil((to - from) / by);
    if (!std::isfinite(exact)) {
      return arguments.Error("start, stop and step", "make a finite number of elements",
                             absl::StrCat(from, ", ", to, " and ", by));
    }
    count = exact <= 0 ? 0 : exact < 1e18 ? static_cast<int64_t>(exact) : int64_t{1} << 60;
  }
  MR_ASSIGN_OR_RETURN(const DType dtype, arguments.TypeAt(3, integers ? DT_INT64 : DT_DOUBLE));
  if (dtype == DT_BOOL || dtype == DT_STRING || IsComplex(dtype)) {
    return arguments.Error("dtype", "be of real numbers", DTypeName(dtype));
  }
  if (count >= static_cast<int64_t>(kMaxBytes / 16)) {
    return arguments.Error("the array",
                           absl::StrCat("have less than ", kMaxBytes / 16, " elements"),
                           absl::StrCat(count));
  }
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({count}));
  // numpy makes the first two elements of the type, and the others of these two.
  StatusOr<Tensor> result = absl::InternalError("");
  if (integers && IsInteger(dtype)) {
    result = Progression<int64_t>(start->integer, step->integer, shape);
  } else if (dtype == DT_DOUBLE) {
    result = Progression<double>(from, (from + by) - from, shape);
  } else if (IsInteger(dtype)) {
    if (std::abs(from) > 1e18 || std::abs(from + by) > 1e18) {
      return arguments.Error("start and step", "fit the type", absl::StrCat(from, " and ", by));
    }
    const int64_t first = static_cast<int64_t>(from);
    result = Progression<int64_t>(first, static_cast<int64_t>(from + by) - first, shape);
  } else {
    const auto rounded = [dtype](double value) -> StatusOr<float> {
      MR_ASSIGN_OR_RETURN(const Tensor typed, ConvertForFeed(Tensor::Scalar(value), dtype));
      MR_ASSIGN_OR_RETURN(const Tensor single, ConvertForFeed(typed, DT_FLOAT));
      return single.scalar<float>();
    };
    MR_ASSIGN_OR_RETURN(const float first, rounded(from));
    MR_ASSIGN_OR_RETURN(const float second, rounded(from + by));
    result = Progression<float>(first, second - first, shape);
  }
  if (!result.ok()) return result.status();
  return ConvertForFeed(*result, dtype);
}

// --- Arrays in lists -----------------------------------------------------------------------------

template <typename T>
PythonValue ElementOf(const Tensor& array, size_t at) {
  PythonValue value;
  if constexpr (std::is_same_v<T, std::string>) {
    value.kind = Kind::kBytes;
    value.text = array.flat<T>()[at];
  } else if constexpr (std::is_same_v<T, double>) {
    value.kind = Kind::kFloat;
    value.real = array.flat<T>()[at];
  } else {
    value.kind = std::is_same_v<T, bool> ? Kind::kBool : Kind::kInt;
    value.integer = static_cast<int64_t>(array.flat<T>()[at]);
  }
  return value;
}

// Those from dimension `depth` on; `at` moves over the elements.
template <typename T>
PythonValue Lists(const Tensor& array, int depth, size_t* at) {
  if (depth == array.shape().rank()) return ElementOf<T>(array, (*at)++);
  PythonValue list;
  list.kind = Kind::kList;
  for (int64_t i = 0; i < array.shape().dim(depth); ++i) {
    list.items.push_back(Lists<T>(array, depth + 1, at));
  }
  return list;
}

}  // namespace

StatusOr<PythonValue> ListsOfArray(const Tensor& array) {
  int64_t rows = 1;  // also of dimensions before one of size 0
  for (const int64_t dim : array.shape().dims()) {
    if (dim > 0) rows = dim > kMaxListed ? kMaxListed + 1 : std::min(rows * dim, kMaxListed + 1);
  }
  if (rows > kMaxListed) {
    return InvalidArgument("an array in a list must have at most ", kMaxListed, " elements, got ",
                           array.shape());
  }
  size_t at = 0;
  const DType dtype = array.dtype();
  if (dtype == DT_STRING) return Lists<std::string>(array, 0, &at);
  if (dtype == DT_BOOL) return Lists<bool>(array, 0, &at);
  if (IsComplex(dtype)) {
    return InvalidArgument("an array in a list must be of real numbers, got ", dtype);
  }
  MR_ASSIGN_OR_RETURN(const Tensor wide,
                      ConvertForFeed(array, IsInteger(dtype) ? DT_INT64 : DT_DOUBLE));
  return IsInteger(dtype) ? Lists<int64_t>(wide, 0, &at) : Lists<double>(wide, 0, &at);
}

std::optional<DType> NumpyType(absl::string_view name) { return Find(kTypes, name); }

std::optional<double> NumpyConstant(absl::string_view name) {
  if (name == "inf") return std::numeric_limits<double>::infinity();
  if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (name == "pi") return std::numbers::pi;
  if (name == "e") return std::numbers::e;
  return std::nullopt;
}

StatusOr<Tensor> CallNumpy(absl::string_view function, absl::Span<const NumpyArgument> arguments) {
  if (function == "zeros") return ZerosOrOnes(function, 0, arguments);
  if (function == "ones") return ZerosOrOnes(function, 1, arguments);
  if (function == "full") return Full(arguments);
  if (function == "array") return Array(function, "object", arguments);
  if (function == "asarray") return Array(function, "a", arguments);
  if (function == "arange") return Arange(arguments);
  if (const std::optional<DType> dtype = NumpyType(function)) {
    return Scalar(function, *dtype, arguments);
  }
  DidYouMean best(function);
  for (const char* name : {"arange", "array", "asarray", "full", "ones", "zeros"}) {
    best.Consider(name);
  }
  return InvalidArgument(
      "np: a function must be arange, array, asarray, full, ones, zeros or a type, got '", function,
      "'", best.Hint());
}

}  // namespace millrace

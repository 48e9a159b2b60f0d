// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_PYTHON_LITERAL_H_
#define MILLRACE_TOOLS_PYTHON_LITERAL_H_

// Python literals, and expressions that make arrays: what a person writes on a command line for a
// value.
//
// None, True, False, integers (decimal, 0x, 0o, 0b, with _), floats, strings and bytes with
// Python's escapes, adjacent ones joined, lists, tuples and dictionaries, with signs. Nothing is
// ever evaluated: a name, a call or an operator is no literal.
//
// An expression may have, wherever a literal may stand, a call of one of a few functions of numpy
// (`np.ones((2, 1), dtype=np.float32)`; tools/numpy_call.h has the list), np.inf, np.nan, np.pi and
// np.e; types (np.float32, float) are arguments of such calls alone. These words are known by the
// parser: no other name, attribute, call, index or operator is.
//
// Values; thread-compatible. Failure: InvalidArgument with the place. Nesting and size are bounded
// by kMaxDepth and the length of the text.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

struct PythonValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kBytes,
    kList,
    kTuple,
    kDict,
    kArray,  // of numpy
    kType    // an argument: "float32"
  };

  Kind kind = Kind::kNone;
  int64_t integer = 0;                                       // kInt; 0 or 1 for kBool
  double real = 0;                                           // kFloat
  std::string text;                                          // kString (UTF-8), kBytes, kType
  std::vector<PythonValue> items;                            // kList, kTuple
  std::vector<std::pair<PythonValue, PythonValue>> entries;  // kDict, in order
  Tensor array;                                              // kArray
};

inline constexpr int kMaxPythonDepth = 64;

StatusOr<PythonValue> ParsePythonLiteral(absl::string_view text);
// The same with calls of numpy, whose arrays become values; those in lists become lists.
StatusOr<PythonValue> ParsePythonExpression(absl::string_view text);

// As Python's str() and repr() write it.
std::string PythonStr(const PythonValue& value);
std::string PythonRepr(const PythonValue& value);
// "<class 'list'>".
std::string PythonTypeText(const PythonValue& value);

// An array, or nested lists or tuples of numbers, Booleans or strings, as
// numpy.asarray(value, dtype) makes an array; for DT_INVALID the natural type: bool, int64, float64
// or string. InvalidArgument for rows of different lengths, mixed or other elements, and numbers
// outside the type.
StatusOr<Tensor> TensorFromPython(const PythonValue& value, DType dtype);

// The same elements as `dtype`: what feeding an array to a placeholder of that type does.
// Numbers and Booleans become numbers; strings stay strings. InvalidArgument otherwise, and for a
// floating-point number outside an integer type. The same type shares the buffer.
StatusOr<Tensor> ConvertForFeed(const Tensor& tensor, DType dtype);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_PYTHON_LITERAL_H_

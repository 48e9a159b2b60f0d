// SPDX-License-Identifier: Apache-2.0
#include "tools/saved_model_inputs.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/deterministic_bytes.h"
#include "formats/npy.h"
#include "proto/example.pb.h"
#include "tools/python_error.h"
#include "tools/python_literal.h"

namespace millrace {
namespace {

using Kind = PythonValue::Kind;

// A Python dict: a key stays where it came first, its value is the last one.
template <typename Value>
using Dict = std::vector<std::pair<std::string, Value>>;

template <typename Value>
Value* Find(Dict<Value>* dict, absl::string_view key) {
  for (auto& [name, value] : *dict) {
    if (name == key) return &value;
  }
  return nullptr;
}

template <typename Value>
void Put(Dict<Value>* dict, absl::string_view key, Value value) {
  if (Value* known = Find(dict, key)) {
    *known = std::move(value);
  } else {
    dict->emplace_back(std::string(key), std::move(value));
  }
}

struct InputFile {
  std::string name;
  std::optional<std::string> variable;
};

StatusOr<Dict<InputFile>> ParseInputs(const std::string& text) {
  Dict<InputFile> files;
  for (absl::string_view part : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const Status bad =
        PythonError("RuntimeError",
                    absl::StrCat("--inputs \"", part,
                                 "\" format is incorrect. Please follow\"<input_key>="
                                 "<filename>\", or\"<input_key>=<filename>[<variable_name>]\""));
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos || equals == 0) return bad;
    const std::string key(part.substr(0, equals));
    absl::string_view file = part.substr(equals + 1);
    InputFile input;
    const size_t open = file.find('[');
    if (open != absl::string_view::npos) {
      if (file.back() != ']') return bad;
      const absl::string_view variable = file.substr(open + 1, file.size() - open - 2);
      if (variable.empty() || absl::StrContains(variable, '[') ||
          absl::StrContains(variable, ']')) {
        return bad;
      }
      input.variable = std::string(variable);
      file = file.substr(0, open);
    }
    if (file.empty() || absl::StrContains(file, ']')) return bad;
    input.name = std::string(file);
    Put(&files, key, std::move(input));
  }
  return files;
}

StatusOr<Dict<PythonValue>> ParseLiterals(const std::string& text, bool has_numpy) {
  Dict<PythonValue> values;
  for (absl::string_view part : absl::StrSplit(text, ';', absl::SkipEmpty())) {
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos) {
      return PythonError("RuntimeError",
                         absl::StrCat("--input_exprs \"", text,
                                      "\" format is incorrect. Please follow\"<input_key>=<python "
                                      "expression>\""));
    }
    const absl::string_view expression = part.substr(equals + 1);
    StatusOr<PythonValue> value =
        has_numpy ? ParsePythonExpression(expression) : ParsePythonLiteral(expression);
    if (!value.ok()) {
      return PythonError("RuntimeError", absl::StrCat("Expression \"", expression,
                                                      "\" is not a valid python literal. ",
                                                      value.status().message()));
    }
    Put(&values, part.substr(0, equals), *std::move(value));
  }
  return values;
}

Status FillFeature(const std::string& name, const PythonValue& list, tensorflow::Feature* feature) {
  if (list.kind != Kind::kList) {
    return PythonError("ValueError",
                       absl::StrCat("feature value must be a list, but ", name, ": \"",
                                    PythonStr(list), "\" is ", PythonTypeText(list)));
  }
  if (list.items.empty()) return PythonError("IndexError", "list index out of range");
  const PythonValue& first = list.items[0];
  const auto mixed = [&](const PythonValue& item) {
    return PythonError(
        "TypeError", absl::StrCat(PythonRepr(item), " has type ", PythonTypeText(item),
                                  ", but feature '", name, "' began with ", PythonTypeText(first)));
  };
  const auto is_integer = [](const PythonValue& v) {
    return v.kind == Kind::kInt || v.kind == Kind::kBool;
  };
  for (const PythonValue& item : list.items) {
    if (first.kind == Kind::kFloat) {
      if (item.kind != Kind::kFloat && !is_integer(item)) return mixed(item);
      feature->mutable_float_list()->add_value(item.kind == Kind::kFloat
                                                   ? static_cast<float>(item.real)
                                                   : static_cast<float>(item.integer));
    } else if (first.kind == Kind::kString || first.kind == Kind::kBytes) {
      if (item.kind != Kind::kString && item.kind != Kind::kBytes) return mixed(item);
      feature->mutable_bytes_list()->add_value(item.text);
    } else if (is_integer(first)) {
      if (!is_integer(item)) return mixed(item);
      feature->mutable_int64_list()->add_value(item.integer);
    } else {
      return PythonError("ValueError",
                         absl::StrCat("Type ", PythonTypeText(first), " for value ",
                                      PythonStr(first), " is not supported for tf.train.Feature."));
    }
  }
  return absl::OkStatus();
}

StatusOr<Tensor> ExamplesTensor(const PythonValue& list) {
  if (list.kind != Kind::kList) {
    return PythonError("ValueError",
                       absl::StrCat("tf.Example input must be a list of dictionaries, but \"",
                                    PythonStr(list), "\" is ", PythonTypeText(list)));
  }
  std::vector<std::string> examples;
  for (const PythonValue& dict : list.items) {
    if (dict.kind != Kind::kDict) {
      return PythonError("ValueError",
                         absl::StrCat("tf.Example input must be a list of dictionaries, but \"",
                                      PythonStr(dict), "\" is ", PythonTypeText(dict)));
    }
    tensorflow::Example example;
    for (const auto& [key, value] : dict.entries) {
      if (key.kind != Kind::kString) {
        return PythonError("TypeError",
                           absl::StrCat("feature name must be a string, got ", PythonRepr(key)));
      }
      MR_RETURN_IF_ERROR(FillFeature(key.text, value,
                                     &(*example.mutable_features()->mutable_feature())[key.text]));
    }
    examples.push_back(DeterministicBytes(example));
  }
  return Tensor::Vector<std::string>(examples);
}

StatusOr<Tensor> ReadInputFile(FileSystem* fs, const InputFile& input,
                               std::vector<std::string>* warnings) {
  MR_ASSIGN_OR_RETURN(const auto file, fs->NewRandomAccessFile(input.name));
  char magic[4] = {};
  if (file->size() >= sizeof(magic)) MR_RETURN_IF_ERROR(file->Read(0, sizeof(magic), magic));
  if (absl::string_view(magic, 2) != "PK") {
    // A pickle could run any code.
    if (magic[0] == '\x80') {
      return PythonError("ValueError", absl::StrCat("Input file ", input.name,
                                                    " is a pickle, which is never loaded; save "
                                                    "it with numpy.save or numpy.savez"));
    }
    MR_ASSIGN_OR_RETURN(Tensor array, ReadNpy(fs, input.name));
    if (input.variable) {
      warnings->push_back(absl::StrCat("Input file ", input.name,
                                       " contains a single ndarray. Name key \"", *input.variable,
                                       "\" ignored."));
    }
    return array;
  }
  MR_ASSIGN_OR_RETURN(NamedArrays arrays, ReadNpz(fs, input.name));
  if (input.variable) {
    for (auto& [name, array] : arrays) {
      if (name == *input.variable) return std::move(array);
    }
    return PythonError("RuntimeError", absl::StrCat("Input file ", input.name,
                                                    " does not contain variable with name \"",
                                                    *input.variable, "\"."));
  }
  if (arrays.size() != 1) {
    return PythonError("RuntimeError",
                       absl::StrCat("Input file ", input.name,
                                    " contains more than one ndarrays. Please specify the name of "
                                    "ndarray to use."));
  }
  return std::move(arrays[0].second);
}

}  // namespace

StatusOr<std::vector<std::pair<std::string, Tensor>>> LoadSavedModelInputs(
    FileSystem* fs, const SavedModelInputFlags& flags, const tensorflow::SignatureDef& signature,
    std::vector<std::string>* warnings) {
  if (flags.inputs.empty() && flags.input_exprs.empty() && flags.input_examples.empty()) {
    return PythonError("AttributeError",
                       "At least one of --inputs, --input_exprs or --input_examples must be "
                       "required");
  }
  MR_ASSIGN_OR_RETURN(const auto files, ParseInputs(flags.inputs));
  MR_ASSIGN_OR_RETURN(const auto literals, ParseLiterals(flags.input_exprs, /*has_numpy=*/true));
  MR_ASSIGN_OR_RETURN(const auto examples,
                      ParseLiterals(flags.input_examples, /*has_numpy=*/false));

  const auto dtype = [&signature](const std::string& key) {
    const auto it = signature.inputs().find(key);
    const StatusOr<DType> type =
        DTypeFromNumber(it == signature.inputs().end() ? 0 : it->second.dtype());
    return type.ok() ? WithoutRef(*type) : DT_INVALID;
  };
  Dict<Tensor> tensors;
  for (const auto& [key, input] : files) {
    StatusOr<Tensor> array = ReadInputFile(fs, input, warnings);
    if (!array.ok()) {
      // Errors of files are raised by their reader in Python too.
      return absl::StrContains(array.status().message(), "Error: ")
                 ? array.status()
                 : PythonError(
                       absl::IsNotFound(array.status()) ? "FileNotFoundError" : "ValueError",
                       array.status().message());
    }
    StatusOr<Tensor> tensor = ConvertForFeed(*array, dtype(key));
    if (!tensor.ok()) {
      return PythonError("ValueError",
                         absl::StrCat("input '", key, "': ", tensor.status().message()));
    }
    Put(&tensors, key, *std::move(tensor));
  }
  for (const auto& [key, value] : literals) {
    if (Find(&tensors, key) != nullptr) {
      warnings->push_back(absl::StrCat("input_key ", key,
                                       " has been specified with both --inputs and --input_exprs "
                                       "options. Value in --input_exprs will be used."));
    }
    StatusOr<Tensor> tensor = TensorFromPython(value, dtype(key));
    if (!tensor.ok()) {
      return PythonError("ValueError",
                         absl::StrCat("input '", key, "': ", tensor.status().message()));
    }
    Put(&tensors, key, *std::move(tensor));
  }
  for (const auto& [key, value] : examples) {
    if (Find(&tensors, key) != nullptr) {
      warnings->push_back(absl::StrCat("input_key ", key,
                                       " has been specified in multiple options. Value in "
                                       "--input_examples will be used."));
    }
    MR_ASSIGN_OR_RETURN(Tensor tensor, ExamplesTensor(value));
    Put(&tensors, key, std::move(tensor));
  }
  for (const auto& [key, tensor] : tensors) {
    if (signature.inputs().count(key) > 0) continue;
    std::set<std::string> keys;
    for (const auto& entry : signature.inputs()) keys.insert(entry.first);
    return PythonError("ValueError",
                       absl::StrCat("\"", key,
                                    "\" is not a valid input key. Please choose "
                                    "from \"",
                                    absl::StrJoin(keys, "\", \""), "\", or use --show option."));
  }
  return tensors;
}

}  // namespace millrace

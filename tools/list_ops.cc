// SPDX-License-Identifier: Apache-2.0
// list_ops: the signatures of all ops of this build, on stdout: as the text of an OpList, or as the
// page docs/ops.md. Without the ops that only the runtime makes ("_Send").

#include <google/protobuf/text_format.h>

#include <cctype>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/exit_code.h"
#include "core/program.h"
#include "core/status.h"
#include "graph/op_registry.h"
#include "proto/op_def.pb.h"
#include "tools/command_line.h"

namespace millrace {
namespace {

// "x: T", "values: N * T", "handle: resource", "inputs: list(Tin)".
std::string ArgumentText(const tensorflow::OpDef::ArgDef& argument) {
  std::string type = argument.type_attr();
  if (!argument.type_list_attr().empty())
    type = absl::StrCat("list(", argument.type_list_attr(), ")");
  if (type.empty()) type = DTypeName(static_cast<DType>(argument.type()));
  if (!argument.number_attr().empty()) type = absl::StrCat(argument.number_attr(), " * ", type);
  return absl::StrCat(argument.name(), ": ", argument.is_ref() ? "Ref(" : "", type,
                      argument.is_ref() ? ")" : "");
}

template <typename Arguments>
std::string ArgumentsText(const Arguments& arguments) {
  return absl::StrJoin(arguments, ", ", [](std::string* out, const auto& argument) {
    out->append(ArgumentText(argument));
  });
}

// "T: float, double", "N: int", without what a type attr allows when that is everything.
std::string AttrText(const tensorflow::OpDef::AttrDef& attr) {
  std::vector<std::string> allowed;
  for (const int type : attr.allowed_values().list().type()) {
    allowed.push_back(DTypeName(static_cast<DType>(type)));
  }
  for (const std::string& word : attr.allowed_values().list().s()) allowed.push_back(word);
  return absl::StrCat(attr.name(), ": ",
                      allowed.empty() ? attr.type() : absl::StrJoin(allowed, " "));
}

std::string GradientText(const OpEntry& entry) {
  switch (entry.differentiability) {
    case OpEntry::Differentiability::kHasGradient:
      return "yes";
    case OpEntry::Differentiability::kNotDifferentiable:
      return "none";
    default:
      return "";
  }
}

std::string Page() {
  std::string text =
      "# The ops\n\nEvery op that a graph may have, made by `list_ops --markdown`; a test "
      "compares. "
      "Gradient: `yes`, `none` where\nnone flows by definition, empty where asking for one is an "
      "error. Attributes say which types are legal. Builders are in\n[ops/](../ops/README.md), "
      "[layers/](../layers/README.md) and [data/](../data/README.md).\n";
  char letter = 0;
  for (const OpEntry* const entry : AllOps()) {
    const tensorflow::OpDef& def = entry->def;
    if (def.name()[0] == '_') continue;
    if (const char first = static_cast<char>(std::toupper(def.name()[0])); first != letter) {
      letter = first;
      absl::StrAppend(
          &text, "\n## ", std::string(1, letter),
          "\n\n| op | takes | gives | attributes | gradient |\n|---|---|---|---|---|\n");
    }
    const std::string attrs = absl::StrJoin(
        def.attr(), "; ", [](std::string* out, const auto& attr) { out->append(AttrText(attr)); });
    absl::StrAppend(&text, "| `", def.name(), "`", def.has_deprecation() ? " (deprecated)" : "",
                    " | ", ArgumentsText(def.input_arg()), " | ", ArgumentsText(def.output_arg()),
                    " | ", attrs, " | ", GradientText(*entry), " |\n");
  }
  return text;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const millrace::ProgramHelp help = {
      .name = "list_ops",
      .about =
          "Writes the signatures of all ops of this build to stdout, as the text of an OpList.",
      .flags = {{.name = "markdown", .help = "writes the page docs/ops.md"}}};
  int exit_code = millrace::kExitOk;
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto flags = millrace::CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  if (const millrace::Status status = millrace::OpRegistrationStatus(); !status.ok()) {
    std::fprintf(stderr, "list_ops: %s\n", status.ToString().c_str());
    return millrace::kExitError;
  }
  if (flags->has("markdown")) {
    const bool is_written = std::fputs(millrace::Page().c_str(), stdout) >= 0;
    return is_written && std::fflush(stdout) == 0 ? millrace::kExitOk : millrace::kExitError;
  }
  tensorflow::OpList ops;
  for (const millrace::OpEntry* entry : millrace::AllOps()) {
    if (entry->def.name()[0] != '_') *ops.add_op() = entry->def;
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(ops, &text);
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? millrace::kExitOk : millrace::kExitError;
}

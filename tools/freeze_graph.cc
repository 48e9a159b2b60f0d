// SPDX-License-Identifier: Apache-2.0
//
// freeze_graph: makes constants of a model's variables; a stand-in for TensorFlow's tool of that
// name, with its flags.
//
//   freeze_graph --input_saved_model_dir DIR --output_node_names y --output_graph FROZEN.pb
//   freeze_graph --input_graph G.pb --input_checkpoint run/model.ckpt-100
//                --output_node_names y --output_graph FROZEN.pb
//
// What becomes of the graph is said in saver/freeze_graph.h. Exit codes: 0, 1 with the reason on
// stderr, 2 for wrong flags.

#include "saver/freeze_graph.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "graph/graph_def.h"
#include "graph/import_export.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "runtime/session.h"
#include "saver/message_file.h"
#include "saver/meta_graph.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"
#include "tools/command_line.h"
#include "tools/op_libraries.h"
#include "tools/op_library_flag.h"
#include "tools/saved_model_run.h"
#include "tools/saved_model_show.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "freeze_graph";

ProgramHelp Help() {
  return {
      .name = kProgram,
      .about =
          "Makes constants of a model's variables: the graph runs without its checkpoint.\n"
          "The model is a SavedModel, or a graph and a checkpoint.",
      .flags = {
          {.name = "output_graph",
           .value = "FILE",
           .help = "the frozen GraphDef; .pbtxt: as text",
           .required = true},
          {.name = "output_node_names",
           .value = "NAMES",
           .help = "what the frozen graph is for: 'y,scores'; the rest is left out",
           .required = true},
          {.name = "input_saved_model_dir",
           .value = "DIR",
           .help = "of the SavedModel, or of its versions: the newest is used"},
          {.name = "saved_model_tags", .value = "TAGS", .help = "of its meta graph (serve)"},
          {.name = "input_graph", .value = "FILE", .help = "a GraphDef: .pb or .pbtxt"},
          {.name = "input_binary",
           .help = "says that it is binary, or not; else its name and bytes do",
           .boolean = true},
          {.name = "input_meta_graph",
           .value = "FILE",
           .help = "a MetaGraphDef in its place: .meta"},
          {.name = "input_checkpoint",
           .value = "PATH",
           .help = "the values of its variables, by their names: 'run/model.ckpt-100', or 'run'"},
          {.name = "initializer_nodes",
           .value = "NAMES",
           .help = "operations to run before values are read"},
          {.name = "variable_names_whitelist",
           .value = "NAMES",
           .help = "the variables to make constants of (all)"},
          {.name = "variable_names_denylist",
           .value = "NAMES",
           .help = "the variables to leave as they are; also --variable_names_blacklist"},
          {.name = "variable_names_blacklist", .value = "NAMES", .help = "the same"},
          {.name = "clear_devices", .help = "removes the devices of nodes (true)", .boolean = true},
          {.name = "restore_op_name", .value = "NAME", .help = "not looked at, as in TensorFlow"},
          {.name = "filename_tensor_name",
           .value = "NAME",
           .help = "not looked at, as in TensorFlow"},
          OpLibraryFlag()}};
}

std::vector<std::string> Names(const CommandLine& flags, const std::string& flag) {
  std::vector<std::string> names;
  for (absl::string_view name : absl::StrSplit(flags.value(flag), ',')) {
    name = absl::StripAsciiWhitespace(name);
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

// A session with the graph, its variables set.
struct OpenedGraph {
  std::unique_ptr<Session> session;
  tensorflow::GraphDef graph;
};

StatusOr<OpenedGraph> FromSavedModel(FileSystem* fs, const CommandLine& flags, bool clear_devices) {
  const std::string dir =
      ModelDirectory(fs, flags.value("input_saved_model_dir"), kProgram, std::cerr);
  std::vector<std::string> tags = Names(flags, "saved_model_tags");
  if (!flags.has("saved_model_tags")) tags = {kSavedModelTagServe};
  MR_ASSIGN_OR_RETURN(const tensorflow::SavedModel saved, ReadSavedModel(fs, dir));
  MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* found, FindMetaGraph(saved, tags));
  tensorflow::MetaGraphDef meta = *found;
  if (clear_devices) ClearDevices(meta.mutable_graph_def());
  MR_ASSIGN_OR_RETURN(SavedModelBundle bundle,
                      LoadMetaGraph(ToolSessionOptions(), dir, std::move(meta), fs));
  OpenedGraph model;
  model.session = std::move(bundle.session);
  model.graph = bundle.meta_graph_def->graph_def();
  return model;
}

StatusOr<tensorflow::GraphDef> ReadInputGraph(FileSystem* fs, const CommandLine& flags) {
  const std::string path = flags.value("input_graph");
  if (!flags.has("input_binary")) return ReadGraphDef(fs, path);
  MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(fs, path));
  tensorflow::GraphDef graph;
  MR_RETURN_IF_ERROR(flags.BoolValue("input_binary", true)
                         ? ParseBytes(bytes, path, "GraphDef", &graph)
                         : ParseText(bytes, path, "GraphDef", &graph));
  return graph;
}

StatusOr<OpenedGraph> FromCheckpoint(FileSystem* fs, const CommandLine& flags, bool clear_devices) {
  const std::string checkpoint = flags.value("input_checkpoint");
  OpenedGraph model;
  tensorflow::MetaGraphDef meta;
  if (flags.has("input_meta_graph")) {
    MR_ASSIGN_OR_RETURN(meta, ReadMetaGraph(fs, flags.value("input_meta_graph")));
    MR_RETURN_IF_ERROR(RemoveUnknownDefaultAttrs(&meta));
    model.graph = std::move(*meta.mutable_graph_def());
  } else {
    MR_ASSIGN_OR_RETURN(model.graph, ReadInputGraph(fs, flags));
  }
  if (clear_devices) ClearDevices(&model.graph);
  MR_ASSIGN_OR_RETURN(model.session, NewSession(ToolSessionOptions()));
  MR_RETURN_IF_ERROR(model.session->Extend(model.graph));
  if (!flags.has("input_meta_graph")) {
    MR_RETURN_IF_ERROR(RestoreByName(model.session.get(), model.graph, checkpoint, fs).status());
  } else {
    MR_RETURN_IF_ERROR(
        Saver::FromDef(meta.saver_def(), fs)->Restore(model.session.get(), checkpoint));
  }
  return model;
}

Status Freeze(const CommandLine& flags) {
  MR_RETURN_IF_ERROR(LoadOpLibraries(flags));
  FileSystem* const fs = FileSystem::Default();
  FreezeOptions options;
  options.outputs = Names(flags, "output_node_names");
  options.only = Names(flags, "variable_names_whitelist");
  options.except = Names(flags, "variable_names_denylist");
  for (std::string& name : Names(flags, "variable_names_blacklist")) {
    options.except.push_back(std::move(name));
  }
  options.clear_devices = flags.BoolValue("clear_devices", true);

  const bool from_checkpoint = !flags.has("input_saved_model_dir");
  MR_ASSIGN_OR_RETURN(const OpenedGraph model,
                      from_checkpoint ? FromCheckpoint(fs, flags, options.clear_devices)
                                      : FromSavedModel(fs, flags, options.clear_devices));
  for (const std::string& node : Names(flags, "initializer_nodes")) {
    MR_RETURN_IF_ERROR(model.session->Run({}, {}, {node}).status());
  }
  StatusOr<FrozenGraph> frozen = FreezeGraph(model.session.get(), model.graph, options);
  if (!frozen.ok() && absl::IsFailedPrecondition(frozen.status()) && flags.has("input_graph")) {
    return Suffixed(frozen.status(),
                    "; the checkpoint has no value under that name: parts of a partitioned "
                    "variable need --input_meta_graph or --input_saved_model_dir, others may need "
                    "--initializer_nodes");
  }
  if (!frozen.ok()) return frozen.status();
  const std::string out = flags.value("output_graph");
  MR_RETURN_IF_ERROR(
      WriteGraphDef(fs, out, frozen->graph,
                    absl::EndsWith(out, "txt") ? GraphFormat::kText : GraphFormat::kBinary));
  if (!frozen->tables.empty()) {
    std::cout << "Filled " << frozen->tables.size() << " look-up tables from const ops.\n";
  }
  std::cout << "Converted " << frozen->variables.size() << " variables to const ops.\n"
            << frozen->graph.node_size() << " ops in the final graph.\n";
  return absl::OkStatus();
}

// "" when the flags say where one model is, else what is wrong.
std::string WrongInput(const CommandLine& flags) {
  const int graphs =
      flags.has("input_saved_model_dir") + flags.has("input_graph") + flags.has("input_meta_graph");
  if (graphs != 1) {
    return "one of --input_saved_model_dir, --input_graph and --input_meta_graph is needed";
  }
  if (flags.has("input_saved_model_dir") == flags.has("input_checkpoint")) {
    return flags.has("input_checkpoint")
               ? "argument --input_checkpoint: not allowed with argument --input_saved_model_dir"
               : "argument --input_checkpoint: needed with a graph";
  }
  return "";
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = Help();
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  if (const std::string wrong = WrongInput(*flags); !wrong.empty()) {
    std::cerr << UsageText(help) << kProgram << ": error: " << wrong << "\n";
    return kExitWrongFlags;
  }
  const Status status = Freeze(*flags);
  if (!status.ok()) std::cerr << kProgram << ": " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}

// SPDX-License-Identifier: Apache-2.0
//
// run_graph: runs a GraphDef on arrays of numpy.
//
//   run_graph --graph FILE.pb|.pbtxt [--feeds IN.npz] --fetches a:0,b:0 [--targets init]
//             --out OUT.npz | --json [--clear_devices] [--dump_graph_after PASS[,PASS]]
//             [--op_library OPS.so]...
//
// --dump_graph_after writes the graph that runs to stderr, as text: after "place", after the
// rewrites that are named (graph/rewrite/rewrite.h), or after "all".
//
// What becomes of targets, strings and types that numpy lacks is said in tools/graph_run.h. Exit
// codes: 0, 1 with the reason on stderr, 2 for wrong flags.

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "formats/npy.h"
#include "graph/graph_def.h"
#include "graph/import_export.h"
#include "tools/command_line.h"
#include "tools/graph_run.h"
#include "tools/op_libraries.h"
#include "tools/op_library_flag.h"

namespace millrace {
namespace {

ProgramHelp Help() {
  return {
      .name = "run_graph",
      .about = "Runs a GraphDef on arrays of numpy. Nodes that ask for a GPU run on the CPU.",
      .flags = {
          {.name = "graph", .value = "FILE", .help = "the graph: .pb or .pbtxt", .required = true},
          {.name = "fetches",
           .value = "NAMES",
           .help = "tensors to write: 'a:0,b:0'",
           .required = true},
          {.name = "out", .value = "FILE", .help = "the .npz that is written"},
          {.name = "json", .help = "prints the fetches as JSON; --out may be left out then"},
          {.name = "feeds", .value = "FILE", .help = "an .npz with arrays by tensor name"},
          {.name = "targets",
           .value = "NAMES",
           .help = "operations to run before, each as a step of its own"},
          {.name = "clear_devices",
           .help = "runs nodes here whatever devices they ask for",
           .boolean = true},
          {.name = "dump_graph_after",
           .value = "PASSES",
           .help = "writes the graph after these rewrites ('place', 'all') to stderr"},
          OpLibraryFlag()}};
}

Status Run(const CommandLine& flags) {
  FileSystem* const fs = FileSystem::Default();
  if (flags.has("dump_graph_after")) {
    setenv("MILLRACE_DUMP_GRAPH_AFTER", flags.value("dump_graph_after").c_str(), /*replace=*/1);
  }
  MR_RETURN_IF_ERROR(LoadOpLibraries(flags));
  MR_ASSIGN_OR_RETURN(tensorflow::GraphDef graph, ReadGraphDef(fs, flags.value("graph")));
  if (flags.BoolValue("clear_devices", false)) ClearDevices(&graph);
  NamedArrays feeds;
  if (flags.has("feeds")) {
    MR_ASSIGN_OR_RETURN(feeds, ReadNpz(fs, flags.value("feeds")));
  }
  const GraphRun run = {absl::StrSplit(flags.value("targets"), ',', absl::SkipEmpty()),
                        absl::StrSplit(flags.value("fetches"), ',', absl::SkipEmpty())};
  MR_ASSIGN_OR_RETURN(const NamedArrays outputs, RunGraphOnArrays(graph, feeds, run));
  if (flags.has("json")) {
    MR_ASSIGN_OR_RETURN(const std::string text, OutputsJson(outputs, run));
    std::cout << text << std::flush;
    if (!std::cout) return absl::UnavailableError("output cannot be written");
  }
  return flags.has("out") ? WriteNpz(fs, flags.value("out"), outputs) : absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  const ProgramHelp help = Help();
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(help, args, &exit_code);
  if (!flags) return exit_code;
  if (!flags->has("out") && !flags->has("json")) {
    std::cerr << UsageText(help) << "run_graph: error: one of --out and --json is needed\n";
    return kExitWrongFlags;
  }
  const Status status = Run(*flags);
  if (!status.ok()) std::cerr << "run_graph: " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}

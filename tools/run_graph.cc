// SPDX-License-Identifier: Apache-2.0
//
// run_graph: runs a GraphDef on arrays of numpy.
//
//   run_graph --graph FILE.pb|.pbtxt [--feeds IN.npz] --fetches a:0,b:0 [--targets init]
//             --out OUT.npz [--dump_graph_after PASS[,PASS]]
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
#include "core/npy.h"
#include "core/status.h"
#include "graph/import_export.h"
#include "tools/command_line.h"
#include "tools/graph_run.h"

namespace millrace {
namespace {

constexpr char kUsage[] =
    "usage: run_graph --graph FILE.pb|.pbtxt [--feeds IN.npz] --fetches a:0,b:0 [--targets init]\n"
    "                 --out OUT.npz [--dump_graph_after PASS[,PASS]]\n";

Status Run(const CommandLine& flags) {
  FileSystem* const fs = FileSystem::Posix();
  if (flags.has("dump_graph_after")) {
    setenv("MILLRACE_DUMP_GRAPH_AFTER", flags.value("dump_graph_after").c_str(), /*replace=*/1);
  }
  MR_ASSIGN_OR_RETURN(const tensorflow::GraphDef graph, ReadGraphDef(fs, flags.value("graph")));
  NamedArrays feeds;
  if (flags.has("feeds")) {
    MR_ASSIGN_OR_RETURN(feeds, ReadNpz(fs, flags.value("feeds")));
  }
  const GraphRun run = {absl::StrSplit(flags.value("targets"), ',', absl::SkipEmpty()),
                        absl::StrSplit(flags.value("fetches"), ',', absl::SkipEmpty())};
  MR_ASSIGN_OR_RETURN(const NamedArrays outputs, RunGraphOnArrays(graph, feeds, run));
  return WriteNpz(fs, flags.value("out"), outputs);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const std::vector<millrace::FlagSpec> specs = {{"graph", true, true},   {"feeds"},
                                                 {"fetches", true, true}, {"targets"},
                                                 {"out", true, true},     {"dump_graph_after"}};
  if (!args.empty() && (args[0] == "-h" || args[0] == "--help")) {
    std::cout << millrace::kUsage;
    return 0;
  }
  const auto flags = millrace::CommandLine::Parse(specs, args);
  if (!flags.ok()) {
    std::cerr << millrace::kUsage << "run_graph: error: " << flags.status().message() << "\n";
    return 2;
  }
  const absl::Status status = millrace::Run(*flags);
  if (!status.ok()) std::cerr << "run_graph: " << status.message() << "\n";
  return millrace::ExitCode(status);
}

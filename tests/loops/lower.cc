// SPDX-License-Identifier: Apache-2.0
#include "tests/loops/lower.h"

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/tensor.h"

namespace millrace::loops {
namespace {

using testing::AttrOf;
using testing::TestGraph;
using In = TestGraph::In;

// Where statements are: outside, on one side of a branch, or in the body of a loop.
struct Place {
  enum class What { kOutside, kBranch, kLoop } what = What::kOutside;
  Place* around = nullptr;
  std::string name;
  // What is in the place has values exactly where this node has; null outside.
  Node* pivot = nullptr;
  Node* pred = nullptr;  // of a branch
  int side = 0;
  int parallel_iterations = 1;  // of a loop
  std::map<int, In> variables;  // set here
  std::map<int, In> captured;   // of the places around
};

class Lowering {
 public:
  explicit Lowering(TestGraph* graph) : graph_(graph) {}

  void Run(const Program& program) {
    Place outside;
    Block(program.statements, &outside);
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      graph_->Probe(absl::StrCat("output", i), {Get(&outside, program.outputs[i])}, 0, "output");
    }
  }

 private:
  // The variable as it is seen in `place`.
  In Get(Place* place, int variable) {
    if (const auto it = place->variables.find(variable); it != place->variables.end()) {
      return it->second;
    }
    if (place->around == nullptr) std::abort();
    if (const auto it = place->captured.find(variable); it != place->captured.end()) {
      return it->second;
    }
    const In from = Get(place->around, variable);
    const std::string name = absl::StrCat(place->name, "/v", variable);
    const In here = place->what == Place::What::kBranch
                        ? In(graph_->Switch(name, from, place->pred), place->side)
                        : In(graph_->Enter(name, from, place->name, /*is_constant=*/true,
                                           place->parallel_iterations));
    return place->captured.emplace(variable, here).first->second;
  }
  bool IsSetHere(const Place& place, int variable) const {
    return place.variables.count(variable) != 0;
  }
  // A loop's constants have values in its last iteration, too, in which the body is dead.
  std::vector<Node*> PivotUnless(const Place& place, const std::vector<int>& inputs) const {
    if (place.what == Place::What::kOutside) return {};
    for (const int v : inputs) {
      if (IsSetHere(place, v)) return {};
    }
    if (place.what == Place::What::kBranch && !inputs.empty()) return {};
    return {place.pivot};
  }

  void Block(const std::vector<Statement>& block, Place* place) {
    for (const Statement& s : block) {
      switch (s.what) {
        case Statement::What::kOp:
          Op(s, place);
          break;
        case Statement::What::kIf:
          If(s, place);
          break;
        case Statement::What::kWhile:
          While(s, place);
          break;
      }
    }
  }

  void Op(const Statement& s, Place* place) {
    std::vector<In> inputs;
    for (const int v : s.inputs) inputs.push_back(Get(place, v));
    std::vector<Node*> controls = PivotUnless(*place, s.inputs);
    if (s.after >= 0) controls.push_back(Get(place, s.after).node);
    if (s.kind == Kind::kLiteral) {
      const Tensor value = Tensor::Scalar<float>(static_cast<float>(Literal(s.name)));
      place->variables.emplace(
          s.result,
          In(graph_->Add("Const", s.name, {},
                         {{"dtype", AttrOf(DT_FLOAT)}, {"value", AttrOf(value)}}, controls)));
      return;
    }
    if (s.kind == Kind::kPure) {
      place->variables.emplace(
          s.result, In(graph_->Add(TakesLarger(s.name) ? "Maximum" : "Minimum", s.name, inputs,
                                   {{"T", AttrOf(DT_FLOAT)}}, controls)));
      return;
    }
    const std::string fail = s.fails_in > 0 ? absl::StrCat("_or_fail", s.fails_in) : "";
    const bool async = s.kind == Kind::kAnswersNow || s.kind == Kind::kAnswersLate;
    const std::string hook = absl::StrCat(s.kind == Kind::kAnswersNow    ? "mix_now"
                                          : s.kind == Kind::kAnswersLate ? "mix_late"
                                                                         : "mix",
                                          fail);
    Node* const node = async ? graph_->ProbeAsync(s.name, inputs, 1, hook, controls)
                             : graph_->Probe(s.name, inputs, 1, hook, controls);
    place->variables.emplace(s.result, In(node));
  }

  Node* Less(const std::string& name, In a, In b, const std::vector<Node*>& controls) {
    return graph_->Add("Less", name, {a, b}, {{"T", AttrOf(DT_FLOAT)}}, controls);
  }

  void If(const Statement& s, Place* place) {
    Node* const pred = Less(absl::StrCat(s.name, "/pred"), Get(place, s.inputs[0]),
                            Get(place, s.inputs[1]), PivotUnless(*place, s.inputs));
    Node* const pivots = graph_->Switch(absl::StrCat(s.name, "/pivots"), pred, pred);
    std::vector<In> from[2];
    for (const int side : {0, 1}) {
      Place branch;
      branch.what = Place::What::kBranch;
      branch.around = place;
      branch.name = absl::StrCat(s.name, side == 0 ? "/false" : "/true");
      branch.pred = pred;
      branch.side = side;
      branch.pivot = graph_->Identity(absl::StrCat(branch.name, "/pivot"), {pivots, side});
      Block(side == 0 ? s.otherwise : s.body, &branch);
      for (const int v : side == 0 ? s.otherwise_results : s.body_results) {
        from[side].push_back(Get(&branch, v));
      }
    }
    for (size_t i = 0; i < s.results.size(); ++i) {
      Node* const merge =
          graph_->Merge(absl::StrCat(s.name, "/merge", i), {from[0][i], from[1][i]});
      place->variables.emplace(s.results[i], In(merge, 0));
    }
  }

  void While(const Statement& s, Place* place) {
    const auto name = [&](const char* part, size_t i) { return absl::StrCat(s.name, part, i); };
    Node* const limit = graph_->Probe(absl::StrCat(s.name, "/limit"), {Get(place, s.inputs[0])}, 1,
                                      "limit", PivotUnless(*place, s.inputs));
    std::vector<Node*> at_start;
    if (place->pivot != nullptr) at_start.push_back(place->pivot);
    const auto enter = [&](const std::string& enter_name, In input, bool constant) {
      return graph_->Enter(enter_name, input, s.name, constant, s.parallel_iterations);
    };
    Node* const count =
        graph_->LoopMerge(absl::StrCat(s.name, "/count"),
                          enter(absl::StrCat(s.name, "/count_enter"),
                                graph_->Source(absl::StrCat(s.name, "/zero"), 0, at_start), false));
    std::vector<Node*> merges;
    for (size_t i = 0; i < s.initial.size(); ++i) {
      merges.push_back(graph_->LoopMerge(
          name("/merge", i), enter(name("/enter", i), Get(place, s.initial[i]), false)));
    }
    Node* const cond =
        graph_->LoopCond(absl::StrCat(s.name, "/cond"),
                         Less(absl::StrCat(s.name, "/less"), {count, 0},
                              enter(absl::StrCat(s.name, "/limit_enter"), limit, true), {}));
    Place body;
    body.what = Place::What::kLoop;
    body.around = place;
    body.name = s.name;
    body.parallel_iterations = s.parallel_iterations;
    Node* const count_ways = graph_->Switch(absl::StrCat(s.name, "/count_ways"), {count, 0}, cond);
    body.pivot = graph_->Identity(absl::StrCat(s.name, "/pivot"), {count_ways, 1});
    body.variables.emplace(s.count, In(body.pivot));
    std::vector<Node*> ways;
    for (size_t i = 0; i < merges.size(); ++i) {
      ways.push_back(graph_->Switch(name("/ways", i), {merges[i], 0}, cond));
      body.variables.emplace(s.inside[i], In(ways[i], 1));
      place->variables.emplace(s.results[i], In(graph_->Exit(name("/exit", i), {ways[i], 0})));
    }
    graph_->Close(count, graph_->Probe(absl::StrCat(s.name, "/next"), {body.pivot}, 1, "next"));
    Block(s.body, &body);
    for (size_t i = 0; i < merges.size(); ++i) {
      const In next = Get(&body, s.next[i]);
      // A constant alone would go on for ever: it has a value in each iteration.
      const bool is_constant = !IsSetHere(body, s.next[i]);
      graph_->Close(
          merges[i],
          is_constant ? In(graph_->Identity(name("/constant_next", i), next, {body.pivot})) : next);
    }
  }

  TestGraph* const graph_;
};

}  // namespace

void Lower(const Program& program, TestGraph* graph) { Lowering(graph).Run(program); }

}  // namespace millrace::loops

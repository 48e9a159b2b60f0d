// SPDX-License-Identifier: Apache-2.0
#include "tests/loops/lower.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/function_def.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"

namespace millrace::loops {
namespace {

using testing::AttrOf;
using testing::TestGraph;
using In = TestGraph::In;

// Where statements are: outside or at the beginning of a function, on one side of a branch, or in
// the body of a loop.
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

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "Lower: %s\n", status.ToString().c_str());
  std::abort();
}

tensorflow::AttrValue FunctionAttr(const std::string& name) { return AttrOf(FunctionName{name}); }

class Lowering {
 public:
  Lowering(const Program& program, const LowerOptions& options, TestGraph* graph)
      : program_(program), options_(options), random_(options.seed), graph_(graph) {}

  void Run() {
    for (const Function& f : program_.functions) {
      const std::vector<DType> types(f.arguments.size(), DT_FLOAT);
      Define(f.name, types, f.no_inline, [&](const std::vector<In>& arguments) {
        Place inside;
        for (size_t i = 0; i < arguments.size(); ++i) {
          inside.variables.emplace(f.arguments[i], arguments[i]);
        }
        Block(f.body, &inside);
        std::vector<In> results;
        for (const int v : f.results) results.push_back(Get(&inside, v));
        return results;
      });
    }
    const auto outside = [&](const std::vector<In>&) {
      Place place;
      Block(program_.statements, &place);
      std::vector<In> results;
      for (const int v : program_.outputs) results.push_back(Get(&place, v));
      return results;
    };
    std::vector<In> outputs;
    if (options_.in_function) {
      Define("main", {}, /*no_inline=*/false, outside);
      outputs = AddCall("StatefulPartitionedCall", "main_call", {}, program_.outputs.size(),
                        {{"Tin", AttrOf(std::vector<DType>())},
                         {"Tout", AttrOf(std::vector<DType>(program_.outputs.size(), DT_FLOAT))},
                         {"f", FunctionAttr("main")}},
                        {});
    } else {
      outputs = outside({});
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      graph_->Probe(absl::StrCat("output", i), {outputs[i]}, 0, "output");
    }
    Strew();
  }

 private:
  using Attrs = std::vector<std::pair<std::string, tensorflow::AttrValue>>;

  // Says of each node of the graph where it wants to be.
  void Strew() {
    if (options_.num_devices == 1) return;
    for (const auto& node : graph_->graph()->nodes()) {
      if (node->op() == "_Arg") continue;
      const uint64_t device = random_() % static_cast<uint64_t>(options_.num_devices);
      node->set_requested_device(absl::StrCat("/device:CPU:", device));
    }
  }

  // Adds a function of what `code` makes, in a graph of its own, of the arguments.
  void Define(const std::string& name, const std::vector<DType>& types, bool no_inline,
              absl::FunctionRef<std::vector<In>(const std::vector<In>&)> code) {
    TestGraph inside;
    inside.graph()->set_library(graph_->graph()->shared_library());
    TestGraph* const around = std::exchange(graph_, &inside);
    FunctionDefParts parts;
    std::vector<In> arguments;
    for (size_t i = 0; i < types.size(); ++i) {
      arguments.emplace_back(
          inside.Add("_Arg", absl::StrCat("a", i), {},
                     {{"T", AttrOf(types[i])}, {"index", AttrOf(static_cast<int64_t>(i))}}));
      parts.arguments.push_back({arguments.back().node, 0});
    }
    for (const In& result : code(arguments)) parts.results.push_back({result.node, result.output});
    parts.effects = EffectsOf(*inside.graph());
    for (const auto& node : inside.graph()->nodes()) {
      // Stateless by its OpDef, whatever its function does.
      if (node->op() == "For") parts.effects.push_back(node.get());
    }
    Strew();
    graph_ = around;
    const auto def = FunctionDefOf(*inside.graph(), name, parts);
    if (!def.ok()) Die(def.status());
    tensorflow::FunctionDefLibrary more;
    *more.add_function() = **def;
    if (no_inline) (*more.mutable_function(0)->mutable_attr())["_noinline"].set_b(true);
    // With those that it defines itself.
    auto library = inside.graph()->library().With(more);
    if (!library.ok()) Die(library.status());
    graph_->graph()->set_library(*std::move(library));
  }

  // A node and its results.
  std::vector<In> AddCall(const std::string& op, const std::string& name,
                          const std::vector<In>& inputs, size_t num_results, Attrs attrs,
                          const std::vector<Node*>& controls) {
    Node* const node = graph_->Add(op, name, inputs, attrs, controls);
    std::vector<In> results;
    for (size_t i = 0; i < num_results; ++i) results.emplace_back(node, static_cast<int>(i));
    return results;
  }

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
        default:
          Calls(s, place);
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

  // --- Of functions

  // Of a call: what it waits for, and what nodes of its own do that have no inputs, or one of its.
  struct Controls {
    std::vector<Node*> call, no_input, first_input, two_inputs;
  };

  void Calls(const Statement& s, Place* place) {
    std::vector<In> inputs;
    for (const int v : s.inputs) inputs.push_back(Get(place, v));
    Controls controls;
    controls.call = PivotUnless(*place, s.inputs);
    if (s.after >= 0) controls.call.push_back(Get(place, s.after).node);
    controls.no_input = PivotUnless(*place, {});
    controls.first_input = PivotUnless(*place, {s.inputs[0]});
    controls.two_inputs = PivotUnless(*place, {s.inputs[0], s.inputs[1]});
    std::vector<In> results;
    switch (s.what) {
      case Statement::What::kCall:
        results = Call(s, inputs, controls);
        break;
      case Statement::What::kCallIf:
        results = CallIf(s, inputs, controls);
        break;
      case Statement::What::kCallCase:
        results = CallCase(s, inputs, controls);
        break;
      case Statement::What::kCallWhile:
        results = CallWhile(s, inputs, controls);
        break;
      default:
        results = CallFor(s, inputs, controls);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      place->variables.emplace(s.results[i], results[i]);
    }
  }

  const Function& CalleeOf(const Statement& s, size_t i) const {
    return program_.functions[static_cast<size_t>(s.callees[i])];
  }

  static Attrs TypeAttrs(const std::vector<In>& inputs) {
    return {{"Tin", AttrOf(std::vector<DType>(inputs.size(), DT_FLOAT))},
            {"Tout", AttrOf(std::vector<DType>(kResults, DT_FLOAT))}};
  }

  std::vector<In> CallOf(const Function& f, int form, const std::string& name,
                         const std::vector<In>& inputs, const std::vector<Node*>& controls) {
    if (form == 1) return AddCall(f.name, name, inputs, kResults, {}, controls);
    Attrs attrs = TypeAttrs(inputs);
    attrs.emplace_back("f", FunctionAttr(f.name));
    return AddCall(f.is_pure ? "PartitionedCall" : "StatefulPartitionedCall", name, inputs,
                   kResults, attrs, controls);
  }

  std::vector<In> Call(const Statement& s, const std::vector<In>& inputs,
                       const Controls& controls) {
    return CallOf(CalleeOf(s, 0), s.form, s.name, inputs, controls.call);
  }

  std::vector<In> CallIf(const Statement& s, const std::vector<In>& inputs,
                         const Controls& controls) {
    const In pred = Less(absl::StrCat(s.name, "/pred"), inputs[0], inputs[1], controls.two_inputs);
    const std::vector<In> rest(inputs.begin() + 2, inputs.end());
    Attrs attrs = TypeAttrs(rest);
    attrs.emplace_back("Tcond", AttrOf(DT_BOOL));
    attrs.emplace_back("then_branch", FunctionAttr(CalleeOf(s, 0).name));
    attrs.emplace_back("else_branch", FunctionAttr(CalleeOf(s, 1).name));
    const bool is_pure = CalleeOf(s, 0).is_pure && CalleeOf(s, 1).is_pure;
    return AddCall(is_pure ? "StatelessIf" : "If", s.name, With(pred, rest), kResults, attrs,
                   controls.call);
  }

  std::vector<In> CallCase(const Statement& s, const std::vector<In>& inputs,
                           const Controls& controls) {
    const std::vector<In> rest(inputs.begin() + 1, inputs.end());
    Attrs attrs = TypeAttrs(rest);
    std::vector<FunctionName> branches;
    for (size_t i = 0; i < s.callees.size(); ++i) branches.push_back({CalleeOf(s, i).name});
    attrs.emplace_back("branches", AttrOf(branches));
    const In index =
        AsInt(absl::StrCat(s.name, "/index"), Limit(s, inputs[0], controls.first_input));
    return AddCall("Case", s.name, With(index, rest), kResults, attrs, controls.call);
  }

  // (count, limit, x) -> (count + 1, limit, f(count, x)).
  std::vector<In> CallWhile(const Statement& s, const std::vector<In>& inputs,
                            const Controls& controls) {
    const std::vector<DType> types(2 + kResults, DT_FLOAT);
    const std::string cond = absl::StrCat(s.name, "_cond"), body = absl::StrCat(s.name, "_body");
    Define(cond, types, /*no_inline=*/false, [&](const std::vector<In>& x) {
      return std::vector<In>{Less(absl::StrCat(s.name, "/less"), x[0], x[1], {})};
    });
    Define(body, types, /*no_inline=*/false, [&](const std::vector<In>& x) {
      std::vector<In> next = {graph_->Probe(absl::StrCat(s.name, "/next"), {x[0]}, 1, "next"),
                              x[1]};
      const std::vector<In> results = CallOf(CalleeOf(s, 0), s.form, absl::StrCat(s.name, "/f"),
                                             With(x[0], {x.begin() + 2, x.end()}), {});
      next.insert(next.end(), results.begin(), results.end());
      return next;
    });
    const std::vector<In> rest(inputs.begin() + 1, inputs.end());
    const In zero = graph_->Source(absl::StrCat(s.name, "/zero"), 0, controls.no_input);
    std::vector<In> results =
        AddCall("While", s.name, With(zero, With(Limit(s, inputs[0], controls.first_input), rest)),
                types.size(),
                {{"T", AttrOf(types)}, {"cond", FunctionAttr(cond)}, {"body", FunctionAttr(body)}},
                controls.call);
    return {results.begin() + 2, results.end()};
  }

  // (i, x) -> f(i, x).
  std::vector<In> CallFor(const Statement& s, const std::vector<In>& inputs,
                          const Controls& controls) {
    std::vector<DType> types(1 + kResults, DT_FLOAT);
    types[0] = DT_INT32;
    const std::string body = absl::StrCat(s.name, "_body");
    Define(body, types, /*no_inline=*/false, [&](const std::vector<In>& x) {
      const In count = Cast(absl::StrCat(s.name, "/count"), x[0], DT_FLOAT);
      return CallOf(CalleeOf(s, 0), s.form, absl::StrCat(s.name, "/f"),
                    With(count, {x.begin() + 1, x.end()}), {});
    });
    const auto number = [&](const char* what, int32_t value) {
      return In(graph_->Add("Const", absl::StrCat(s.name, what), {},
                            {{"dtype", AttrOf(DT_INT32)}, {"value", AttrOf(Tensor::Scalar(value))}},
                            controls.no_input));
    };
    const std::vector<In> rest(inputs.begin() + 1, inputs.end());
    const In start = number("/start", 0), delta = number("/delta", 1);
    const In limit =
        AsInt(absl::StrCat(s.name, "/limit_int"), Limit(s, inputs[0], controls.first_input));
    return AddCall(
        "For", s.name, With(start, With(limit, With(delta, rest))), kResults,
        {{"T", AttrOf(std::vector<DType>(kResults, DT_FLOAT))}, {"body", FunctionAttr(body)}},
        controls.call);
  }

  In Limit(const Statement& s, In of, const std::vector<Node*>& controls) {
    return graph_->Probe(absl::StrCat(s.name, "/limit"), {of}, 1, "limit", controls);
  }
  In Cast(const std::string& name, In in, DType to) {
    return graph_->Add("Cast", name, {in},
                       {{"SrcT", AttrOf(in.node->output_type(in.output))}, {"DstT", AttrOf(to)}});
  }
  In AsInt(const std::string& name, In in) { return Cast(name, in, DT_INT32); }
  static std::vector<In> With(In first, std::vector<In> others) {
    others.insert(others.begin(), first);
    return others;
  }

  const Program& program_;
  const LowerOptions options_;
  std::mt19937_64 random_;
  TestGraph* graph_;
};

}  // namespace

void Lower(const Program& program, TestGraph* graph) {
  Lowering(program, LowerOptions(), graph).Run();
}

tensorflow::GraphDef LowerToGraphDef(const Program& program, const LowerOptions& options) {
  TestGraph graph;
  Lowering(program, options, &graph).Run();
  tensorflow::GraphDef def;
  graph.graph()->ToGraphDef(&def);
  return def;
}

}  // namespace millrace::loops

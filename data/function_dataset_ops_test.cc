// SPDX-License-Identifier: Apache-2.0
//
// Dataset ops with functions: a graph's dataset gives what the C++ combinators give, its functions
// see what they captured, wait for nobody who waits for them, end when they are cancelled, and
// outlive their session.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/dataset_variant.h"
#include "data/iterator_ops.h"
#include "data/testing/dataset_testing.h"
#include "graph/attr.h"
#include "graph/function_builder.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/config.pb.h"
#include "runtime/session.h"

// covers: input: dataset ops with functions give what the C++ combinators give, see variables as
//   they are, save and go on; their functions never deadlock on their own threads, end with step
//   and session; mismatches are named

namespace millrace::data {
namespace {

using absl::StatusCode;
using Outputs = std::vector<Output>;

struct Elements {
  std::vector<DType> types = {DT_INT64};
  std::vector<PartialShape> shapes = {PartialShape::Scalar()};
};

NodeBuilder& Describe(const Elements& elements, NodeBuilder& builder) {
  return builder.Attr("output_types", elements.types).Attr("output_shapes", elements.shapes);
}

// int64 0, 1, ..., n - 1.
Output RangeOf(const Scope& scope, const Output& n) {
  return Describe({}, NodeBuilder(scope, "RangeDataset")
                          .Input(Const(scope, int64_t{0}))
                          .Input(n)
                          .Input(Const(scope, int64_t{1})))
      .Finish()
      .output(0);
}
Output RangeOf(const Scope& scope, int64_t n) { return RangeOf(scope, Const(scope, n)); }

FunctionName NameOf(const DefinedFunction& function) { return {function.name}; }

// A dataset op with the function of attr `attr` and `further` inputs behind what it captured.
Output WithFunction(const Scope& scope, const char* op, const Output& input,
                    const DefinedFunction& function, const Outputs& further = {},
                    const Elements& elements = {}, const char* attr = "f") {
  NodeBuilder builder(scope, op);
  builder.Input(input).Input(absl::MakeConstSpan(function.captures));
  for (const Output& one : further) builder.Input(one);
  return Describe(elements, builder.Attr(attr, NameOf(function))).Finish().output(0);
}

DefinedFunction Squares(const Scope& scope) {
  return DefineFunction(scope, "square", {DT_INT64}, [](const Scope& s, const Outputs& x) {
    return Outputs{Mul(s, x[0], x[0])};
  });
}

// x -> the dataset 0, ..., x - 1.
DefinedFunction Ranges(const Scope& scope) {
  return DefineFunction(scope, "range", {DT_INT64},
                        [](const Scope& s, const Outputs& x) { return Outputs{RangeOf(s, x[0])}; });
}

// The dataset of a graph's tensor. Its session has ended when this returns.
StatusOr<Dataset> MadeBy(const Scope& scope, const Output& dataset) {
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, session->Run({}, {dataset}));
  MR_ASSIGN_OR_RETURN(DatasetWithOptions made, DatasetOf(out[0], "the result"));
  return std::move(made.dataset);
}

std::string Text(const Scope& scope, const Output& dataset) {
  const StatusOr<Dataset> made = MadeBy(scope, dataset);
  return made.ok() ? TextOf(*made) : std::string(made.status().message());
}

// --- Values

TEST(FunctionDatasets, MapCallsItsFunctionWithWhatItCaptured) {
  for (const char* op : {"MapDataset", "ExperimentalMapDataset"}) {
    Scope scope;
    const Output ten = Const(scope, int64_t{10});
    const DefinedFunction f =
        DefineFunction(scope, "f", {DT_INT64}, [&](const Scope& s, const Outputs& x) {
          return Outputs{Add(s, x[0], ten), Neg(s, x[0])};
        });
    EXPECT_EQ(f.captures.size(), 1u);
    const Elements pairs = {{DT_INT64, DT_INT64}, {PartialShape::Scalar(), PartialShape::Scalar()}};
    const Output map = WithFunction(scope, op, RangeOf(scope, 3), f, {}, pairs);
    EXPECT_EQ(Text(scope, map), "10|0 11|-1 12|-2");
  }
}

TEST(FunctionDatasets, CallsAtOnceKeepTheOrder) {
  const Dataset range = Dataset::Range(500);
  const std::string want = TextOf(range.Map([](Element e) -> StatusOr<Element> {
    const int64_t x = e[0].raw_scalar<int64_t>();
    return Element{Tensor::Scalar(x * x)};
  }));
  for (const int calls : {1, 4, 1000, -1}) {
    Scope scope;
    const Output map = WithFunction(scope, "ParallelMapDataset", RangeOf(scope, 500),
                                    Squares(scope), {Const(scope, calls)});
    EXPECT_EQ(Text(scope, map), want) << calls;
  }
}

TEST(FunctionDatasets, MapAndBatchGivesBatchesOfResults) {
  for (const bool drop : {false, true}) {
    Scope scope;
    const Output batches =
        WithFunction(scope, "MapAndBatchDataset", RangeOf(scope, 5), Squares(scope),
                     {Const(scope, int64_t{2}), Const(scope, int64_t{3}), Const(scope, drop)},
                     {{DT_INT64}, {PartialShape({-1})}});
    EXPECT_EQ(Text(scope, batches), drop ? "[0 1] [4 9]" : "[0 1] [4 9] [16]");
  }
}

TEST(FunctionDatasets, PredicatesChooseOrEnd) {
  Scope scope;
  const DefinedFunction odd =
      DefineFunction(scope, "odd", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{Equal(s, FloorMod(s, x[0], Const(s, int64_t{2})), Const(s, int64_t{1}))};
      });
  const DefinedFunction small =
      DefineFunction(scope, "small", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{Less(s, x[0], Const(s, int64_t{3}))};
      });
  const Output range = RangeOf(scope, 7);
  EXPECT_EQ(Text(scope, WithFunction(scope, "FilterDataset", range, odd, {}, {}, "predicate")),
            "1 3 5");
  for (const char* op : {"TakeWhileDataset", "ExperimentalTakeWhileDataset"}) {
    EXPECT_EQ(Text(scope, WithFunction(scope, op, range, small, {}, {}, "predicate")), "0 1 2");
  }
}

TEST(FunctionDatasets, DatasetsOfElementsAreReadAsByTheEngine) {
  const auto ranges = [](const Element& e) -> StatusOr<Dataset> {
    return Dataset::Range(e[0].raw_scalar<int64_t>());
  };
  Scope scope;
  const Output range = RangeOf(scope, 6);
  const DefinedFunction f = Ranges(scope);
  EXPECT_EQ(Text(scope, WithFunction(scope, "FlatMapDataset", range, f)),
            TextOf(Dataset::Range(6).FlatMap(ranges)));
  const Output three = Const(scope, int64_t{3}), two = Const(scope, int64_t{2});
  const std::string want =
      TextOf(Dataset::Range(6).Interleave(ranges, {.cycle_length = 3, .block_length = 2}));
  EXPECT_EQ(Text(scope, WithFunction(scope, "InterleaveDataset", range, f, {three, two})), want);
  EXPECT_EQ(Text(scope,
                 WithFunction(scope, "ParallelInterleaveDatasetV2", range, f, {three, two, three})),
            want);
  const Output sloppy = Const(scope, false);
  for (const char* op : {"ParallelInterleaveDataset", "ExperimentalParallelInterleaveDataset"}) {
    EXPECT_EQ(Text(scope, WithFunction(scope, op, range, f, {three, two, sloppy, two, two})), want);
  }
}

// (sum, x) -> (sum + x, [sum + x, x])
Output Sums(const Scope& scope, const Output& input) {
  const DefinedFunction f =
      DefineFunction(scope, "sum", {DT_INT64, DT_INT64}, [](const Scope& s, const Outputs& x) {
        const Output sum = Add(s, x[0], x[1]);
        return Outputs{sum, sum, x[1]};
      });
  return Describe({{DT_INT64, DT_INT64}, {PartialShape::Scalar(), PartialShape::Scalar()}},
                  NodeBuilder(scope, "ScanDataset")
                      .Input(input)
                      .Input(Outputs{Const(scope, int64_t{100})})
                      .Input(Outputs{})
                      .Attr("f", NameOf(f)))
      .Finish()
      .output(0);
}

TEST(FunctionDatasets, ScanKeepsItsState) {
  Scope scope;
  EXPECT_EQ(Text(scope, Sums(scope, RangeOf(scope, 4))), "100|0 101|1 103|2 106|3");
}

// Windows of key x % 2, of 2 + key elements, as batches.
Output Windows(const Scope& scope, const Output& input, int64_t least = 2) {
  const DefinedFunction key =
      DefineFunction(scope, "key", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{FloorMod(s, x[0], Const(s, int64_t{2}))};
      });
  const DefinedFunction size = DefineFunction(
      scope, "size", {DT_INT64},
      [&](const Scope& s, const Outputs& x) { return Outputs{Add(s, x[0], Const(s, least))}; });
  const Elements batches = {{DT_INT64}, {PartialShape({-1})}};
  const DefinedFunction reduce = DefineFunction(
      scope, "reduce", {DT_INT64, DT_VARIANT}, [&](const Scope& s, const Outputs& x) {
        return Outputs{Describe(batches, NodeBuilder(s, "BatchDatasetV2")
                                             .Input(x[1])
                                             .Input(Const(s, int64_t{9}))
                                             .Input(Const(s, false)))
                           .Finish()
                           .output(0)};
      });
  return Describe(batches, NodeBuilder(scope, "GroupByWindowDataset")
                               .Input(input)
                               .Input(Outputs{})
                               .Input(Outputs{})
                               .Input(Outputs{})
                               .Attr("key_func", NameOf(key))
                               .Attr("window_size_func", NameOf(size))
                               .Attr("reduce_func", NameOf(reduce)))
      .Finish()
      .output(0);
}

TEST(FunctionDatasets, WindowsHaveTheSizeOfTheirKey) {
  Scope scope;
  EXPECT_EQ(Text(scope, Windows(scope, RangeOf(scope, 9))), "[0 2] [1 3 5] [4 6] [8] [7]");
  EXPECT_TRUE(absl::StrContains(Text(scope, Windows(scope, RangeOf(scope, 1), 0)),
                                "window_size must be >= 1, got 0 for key 0"));
}

// (sum, count) of the elements of each key x % 3, as sum * 100 + count + 1000 * key.
Output Reduced(const Scope& scope, const Output& input, const char* op = "GroupByReducerDataset") {
  const DefinedFunction key =
      DefineFunction(scope, "key", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{FloorMod(s, x[0], Const(s, int64_t{3}))};
      });
  const DefinedFunction init =
      DefineFunction(scope, "init", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{Mul(s, x[0], Const(s, int64_t{1000})), Const(s, 0)};
      });
  const Output hundred = Const(scope, int64_t{100});
  const DefinedFunction reduce = DefineFunction(
      scope, "reduce", {DT_INT64, DT_INT32, DT_INT64}, [&](const Scope& s, const Outputs& x) {
        return Outputs{Add(s, x[0], Mul(s, x[2], hundred)), Add(s, x[1], Const(s, 1))};
      });
  const DefinedFunction finalize =
      DefineFunction(scope, "finalize", {DT_INT64, DT_INT32}, [](const Scope& s, const Outputs& x) {
        return Outputs{Add(s, x[0], Cast(s, x[1], DT_INT64))};
      });
  return Describe({}, NodeBuilder(scope, op)
                          .Input(input)
                          .Input(Outputs{})
                          .Input(Outputs{})
                          .Input(absl::MakeConstSpan(reduce.captures))
                          .Input(Outputs{})
                          .Attr("key_func", NameOf(key))
                          .Attr("init_func", NameOf(init))
                          .Attr("reduce_func", NameOf(reduce))
                          .Attr("finalize_func", NameOf(finalize)))
      .Finish()
      .output(0);
}

TEST(FunctionDatasets, EachKeyIsReducedToOneElement) {
  for (const char* op : {"GroupByReducerDataset", "ExperimentalGroupByReducerDataset"}) {
    Scope scope;
    // 0 + 3 + 6, 1 + 4 + 7, 2 + 5
    EXPECT_EQ(Text(scope, Reduced(scope, RangeOf(scope, 8), op)), "903 2203 2702");
    EXPECT_EQ(Text(scope, Reduced(scope, RangeOf(scope, 0), op)), "");
  }
}

// Elements of the datasets 0, 1, ... and 0, 10, 20, ..., as a dataset of numbers says.
Output Directed(const Scope& scope, const Output& selector, int64_t first, int64_t second,
                const char* op = "DirectedInterleaveDataset") {
  const DefinedFunction tens =
      DefineFunction(scope, "tens", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{Mul(s, x[0], Const(s, int64_t{10}))};
      });
  const Output inputs[] = {RangeOf(scope, first),
                           WithFunction(scope, "MapDataset", RangeOf(scope, second), tens)};
  return Describe({}, NodeBuilder(scope, op).Input(selector).Input(absl::MakeConstSpan(inputs)))
      .Finish()
      .output(0);
}
// x -> x % 2 + `add`
Output Alternating(const Scope& scope, int64_t n, int64_t add = 0) {
  const DefinedFunction f =
      DefineFunction(scope, "choose", {DT_INT64}, [add](const Scope& s, const Outputs& x) {
        return Outputs{Add(s, FloorMod(s, x[0], Const(s, int64_t{2})), Const(s, add))};
      });
  return WithFunction(scope, "MapDataset", RangeOf(scope, n), f);
}

TEST(FunctionDatasets, OneSaysFromWhichTheNextElementIs) {
  for (const char* op : {"DirectedInterleaveDataset", "ExperimentalDirectedInterleaveDataset"}) {
    Scope scope;
    const auto text = [&](const Output& selector, int64_t first, int64_t second) {
      return Text(scope, Directed(scope, selector, first, second, op));
    };
    // It ends first; one of the others; both.
    EXPECT_EQ(text(Alternating(scope, 5), 9, 9), "0 0 1 10 2");
    EXPECT_EQ(text(Alternating(scope, 8), 9, 1), "0 0 1 2 3");
    EXPECT_EQ(text(Alternating(scope, 100), 2, 3), "0 0 1 10 20");
    EXPECT_TRUE(absl::StrContains(text(Alternating(scope, 5, 1), 9, 9),
                                  "the selector must give numbers of inputs, 0 to 1, got 2"));
  }
}

TEST(FunctionDatasets, StatesGoOn) {
  Scope scope;
  const Output range = RangeOf(scope, 9);
  for (const Output& output :
       {WithFunction(scope, "MapDataset", range, Squares(scope)), Sums(scope, range),
        Windows(scope, range), WithFunction(scope, "FlatMapDataset", range, Ranges(scope)),
        Reduced(scope, range), Directed(scope, Alternating(scope, 9), 3, 9)}) {
    ASSERT_OK_AND_ASSIGN(const Dataset dataset, MadeBy(scope, output));
    ExpectStatesGoOn(dataset);
    ExpectKeepsItsSpec(dataset);
  }
}

// The sum of the elements, in one step.
Output SumOf(const Scope& scope, const Output& dataset) {
  const DefinedFunction f =
      DefineFunction(scope, "add", {DT_INT64, DT_INT64},
                     [](const Scope& s, const Outputs& x) { return Outputs{Add(s, x[0], x[1])}; });
  return Describe({}, NodeBuilder(scope, "ReduceDataset")
                          .Input(dataset)
                          .Input(Outputs{Const(scope, int64_t{0})})
                          .Input(Outputs{})
                          .Attr("f", NameOf(f)))
      .Finish()
      .output(0);
}
Output SingleOf(const Scope& scope, const Output& dataset) {
  return Describe({}, NodeBuilder(scope, "DatasetToSingleElement").Input(dataset))
      .Finish()
      .output(0);
}

TEST(FunctionDatasets, StepsReadWholeDatasets) {
  Scope scope;
  const Output sum = SumOf(scope, RangeOf(scope, 10)), nothing = SumOf(scope, RangeOf(scope, 0));
  const Output one = SingleOf(scope, RangeOf(scope, 1));
  const Output none = SingleOf(scope, RangeOf(scope, 0)), two = SingleOf(scope, RangeOf(scope, 2));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {sum, nothing, one}));
  EXPECT_EQ(TextOf(Element(out)), "45|0|0");
  EXPECT_STATUS(session->Run({}, {none}).status(), StatusCode::kInvalidArgument,
                "Dataset was empty.");
  EXPECT_STATUS(session->Run({}, {two}).status(), StatusCode::kInvalidArgument,
                "Dataset had more than one element.");
}

// --- Iterators

// "next" of an iterator over the dataset.
struct Iterated {
  Operation make;
  Output next;
};
Iterated Iterate(const Scope& scope, const Output& dataset) {
  const Output iterator = IteratorV2(scope, {DT_INT64}, {PartialShape::Scalar()});
  return {MakeIterator(scope, dataset, iterator),
          IteratorGetNext(scope, iterator, {DT_INT64}, {PartialShape::Scalar()})[0]};
}

// Elements that steps get from `next`, and the last error.
std::string Rest(Session* session, const Output& next) {
  std::vector<std::string> all;
  for (int i = 0; i < 1000; ++i) {
    const auto out = session->Run({}, {next});
    if (!out.ok()) {
      if (!absl::IsOutOfRange(out.status())) all.emplace_back(out.status().message());
      break;
    }
    all.push_back(TextOf(Element(*out)));
  }
  return absl::StrJoin(all, " ");
}

TEST(FunctionDatasets, OneShotIteratorsBeginByThemselvesOnce) {
  Scope scope;
  const DefinedFunction factory =
      DefineFunction(scope, "factory", {}, [](const Scope& s, const Outputs&) {
        return Outputs{WithFunction(s, "MapDataset", RangeOf(s, 4), Squares(s))};
      });
  const Output iterator =
      Describe({}, NodeBuilder(scope, "OneShotIterator").Attr("dataset_factory", NameOf(factory)))
          .Finish()
          .output(0);
  const Output next = IteratorGetNext(scope, iterator, {DT_INT64}, {PartialShape::Scalar()})[0];
  for (int i = 0; i < 2; ++i) {  // each session has its own
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(scope));
    EXPECT_EQ(Rest(session.get(), next), "0 1 4 9");
    EXPECT_EQ(Rest(session.get(), next), "");
  }
}

TEST(FunctionDatasets, FunctionsReadVariablesAsTheyAre) {
  Scope scope;
  const Output v = VarHandleOp(scope.WithName("v"), DT_INT64, {});
  const Output value = Placeholder(scope, DT_INT64, PartialShape::Scalar());
  const Operation assign = AssignVariableOp(scope, v, value);
  const DefinedFunction f =
      DefineFunction(scope, "f", {DT_INT64}, [&](const Scope& s, const Outputs& x) {
        return Outputs{Add(s, x[0], ReadVariableOp(s, v, DT_INT64))};
      });
  const Iterated it = Iterate(scope, WithFunction(scope, "MapDataset", RangeOf(scope, 9), f));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK(session->Run({{value, Tensor::Scalar(int64_t{10})}}, {}, {assign}));
  ASSERT_OK(session->Run({}, {}, {it.make}));
  ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {it.next}));
  EXPECT_EQ(TextOf(Element(out)), "10");
  ASSERT_OK(session->Run({{value, Tensor::Scalar(int64_t{20})}}, {}, {assign}));
  ASSERT_OK_AND_ASSIGN(out, session->Run({}, {it.next}));
  EXPECT_EQ(TextOf(Element(out)), "21");
}

TEST(FunctionDatasets, AFunctionThatReachesAnEndEndsItsDatasetUnlessACountIsPromised) {
  Scope scope;
  const Iterated inner = Iterate(scope, RangeOf(scope, 2));
  const Output iterator = Output(inner.next.node()->input(0).node, 0);
  const DefinedFunction f =
      DefineFunction(scope, "f", {DT_INT64}, [&](const Scope& s, const Outputs&) {
        return IteratorGetNext(s, iterator, {DT_INT64}, {PartialShape::Scalar()});
      });
  const Iterated ends = Iterate(scope, WithFunction(scope, "MapDataset", RangeOf(scope, 5), f));
  const Output promised = Describe({}, NodeBuilder(scope, "MapDataset")
                                           .Input(RangeOf(scope, 5))
                                           .Input(absl::MakeConstSpan(f.captures))
                                           .Attr("f", NameOf(f))
                                           .Attr("preserve_cardinality", true))
                              .Finish()
                              .output(0);
  const Iterated fails = Iterate(scope, promised);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK(session->Run({}, {}, {inner.make}));
  ASSERT_OK(session->Run({}, {}, {ends.make}));
  EXPECT_EQ(Rest(session.get(), ends.next), "0 1");
  ASSERT_OK(session->Run({}, {}, {inner.make}));
  ASSERT_OK(session->Run({}, {}, {fails.make}));
  EXPECT_TRUE(absl::StartsWith(Rest(session.get(), fails.next), "0 1 "));
  EXPECT_STATUS(session->Run({}, {fails.next}).status(), StatusCode::kInvalidArgument,
                "Function invocation produced OutOfRangeError");
}

TEST(FunctionDatasets, AnErrorIsInThePlaceOfItsElement) {
  Scope scope;
  const DefinedFunction f =
      DefineFunction(scope, "f", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{FloorDiv(s, Const(s, int64_t{10}), Sub(s, x[0], Const(s, int64_t{1})))};
      });
  for (const int calls : {1, 3}) {
    ASSERT_OK_AND_ASSIGN(const Dataset map,
                         MadeBy(scope, WithFunction(scope, "ParallelMapDataset", RangeOf(scope, 4),
                                                    f, {Const(scope, calls)})));
    EXPECT_EQ(TextOf(map.IgnoreErrors()), "-10 10 5") << calls;
    EXPECT_TRUE(absl::StrContains(TextOf(map), "division by zero")) << TextOf(map);
  }
}

// --- Threads

// More calls at once than the I/O pool has threads, each of which reads a dataset of its own.
TEST(FunctionDatasets, CallsWaitForNoThreadThatWaitsForThem) {
  Scope scope;
  const DefinedFunction f =
      DefineFunction(scope, "f", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        const DefinedFunction inner =
            DefineFunction(s, "inner", {DT_INT64}, [](const Scope& in, const Outputs& y) {
              return Outputs{SumOf(in, RangeOf(in, y[0]))};
            });
        const Output map =
            WithFunction(s, "ParallelMapDataset", RangeOf(s, x[0]), inner, {Const(s, 32)});
        return Outputs{SumOf(s, map)};
      });
  const Output outer =
      WithFunction(scope, "ParallelMapDataset", RangeOf(scope, 60), f, {Const(scope, 64)});
  const Output sum = SumOf(scope, outer);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  int64_t want = 0;
  for (int64_t x = 0; x < 60; ++x) {
    for (int64_t y = 0; y < x; ++y) want += y * (y - 1) / 2;
  }
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {sum}));
  EXPECT_EQ(out[0].raw_scalar<int64_t>(), want);
}

// x -> x, after for ever.
DefinedFunction Endless(const Scope& scope) {
  return DefineFunction(scope, "endless", {DT_INT64}, [](const Scope& s, const Outputs& x) {
    const DefinedFunction cond =
        DefineFunction(s, "cond", {DT_INT64}, [](const Scope& in, const Outputs& y) {
          return Outputs{GreaterEqual(in, y[0], Const(in, int64_t{0}))};
        });
    const DefinedFunction body =
        DefineFunction(s, "body", {DT_INT64},
                       [](const Scope& in, const Outputs& y) { return Outputs{Abs(in, y[0])}; });
    return Outputs{StatelessWhile(s, x, NameOf(cond), NameOf(body)).output(0)};
  });
}

TEST(FunctionDatasets, AFunctionWithoutEndEndsWithItsStepOrSession) {
  Scope scope;
  const Output endless = WithFunction(scope, "MapDataset", RangeOf(scope, 2), Endless(scope));
  const Output sum = SumOf(scope, endless);
  const Iterated it = Iterate(scope, endless);
  const Output fine = SumOf(scope, RangeOf(scope, 4));
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  tensorflow::RunOptions limit;
  limit.set_timeout_in_ms(50);
  EXPECT_EQ(session->Run(limit, {}, {sum}, {}, nullptr).status().code(),
            StatusCode::kDeadlineExceeded);
  ASSERT_OK(session->Run({}, {}, {it.make}));
  EXPECT_EQ(session->Run(limit, {}, {it.next}, {}, nullptr).status().code(),
            StatusCode::kDeadlineExceeded);
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {fine}));
  EXPECT_EQ(out[0].raw_scalar<int64_t>(), 6);
  session.reset();  // the iterator's function runs still
}

TEST(FunctionDatasets, SessionsEndWhileElementsAreMadeAhead) {
  for (int i = 0; i < 20; ++i) {
    Scope scope;
    const Output map = WithFunction(scope, "ParallelMapDataset", RangeOf(scope, 1'000'000),
                                    Squares(scope), {Const(scope, 4)});
    const Output ahead =
        Describe({},
                 NodeBuilder(scope, "PrefetchDataset").Input(map).Input(Const(scope, int64_t{100})))
            .Finish()
            .output(0);
    const Iterated it = Iterate(scope, ahead);
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(scope));
    ASSERT_OK(session->Run({}, {}, {it.make}));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {it.next}));
    EXPECT_EQ(out[0].raw_scalar<int64_t>(), 0);
  }
}

// --- What cannot be

TEST(FunctionDatasets, WhatDoesNotFitIsNamed) {
  Scope scope;
  const Output range = RangeOf(scope, 3);
  const DefinedFunction square = Squares(scope), ranges = Ranges(scope);
  const DefinedFunction of_floats =
      DefineFunction(scope, "of_floats", {DT_FLOAT},
                     [](const Scope& s, const Outputs& x) { return Outputs{Neg(s, x[0])}; });
  const DefinedFunction of_two =
      DefineFunction(scope, "of_two", {DT_INT64, DT_INT64},
                     [](const Scope& s, const Outputs& x) { return Outputs{Add(s, x[0], x[1])}; });
  const DefinedFunction vector =
      DefineFunction(scope, "vector", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{ExpandDims(s, Equal(s, x[0], x[0]), Const(s, 0))};
      });
  const DefinedFunction fails =
      DefineFunction(scope, "fails", {DT_INT64}, [](const Scope& s, const Outputs& x) {
        return Outputs{FloorDiv(s, x[0], Sub(s, x[0], x[0]))};
      });
  DefinedFunction missing = square;
  missing.name = "nobody";
  const Output zero = Const(scope, int64_t{0}), one = Const(scope, int64_t{1});
  struct Case {
    const char* name;
    Output dataset;
    StatusCode code;
    std::vector<std::string> words;
  };
  const StatusCode invalid = StatusCode::kInvalidArgument;
  const std::vector<Case> cases = {
      {"OtherArguments",
       WithFunction(scope, "MapDataset", range, of_floats),
       invalid,
       {"MapDataset", "attr 'f' must take elements (int64)", "(float)"}},
      {"OtherArity",
       WithFunction(scope, "MapDataset", range, of_two),
       invalid,
       {"must take elements (int64)", "(int64, int64)"}},
      {"OtherResults",
       WithFunction(scope, "MapDataset", range, ranges),
       invalid,
       {"must return (int64)", "(variant)"}},
      {"NoPredicate",
       WithFunction(scope, "FilterDataset", range, square, {}, {}, "predicate"),
       invalid,
       {"'predicate' must return (bool)", "(int64)"}},
      {"NoDataset",
       WithFunction(scope, "FlatMapDataset", range, square),
       invalid,
       {"must return (variant)", "(int64)"}},
      {"NoCycle",
       WithFunction(scope, "InterleaveDataset", range, ranges, {zero, one}),
       invalid,
       {"cycle_length must be >= 1, got 0"}},
      {"NoCalls",
       WithFunction(scope, "ParallelMapDataset", range, square, {Const(scope, 0)}),
       invalid,
       {"num_parallel_calls must be >= 1, got 0"}},
      {"NoInterleavedCalls",
       WithFunction(scope, "ParallelInterleaveDatasetV2", range, ranges, {one, one, zero}),
       invalid,
       {"num_parallel_calls must be >= 1 or -1, got 0"}},
      {"Missing",
       WithFunction(scope, "MapDataset", range, missing),
       StatusCode::kNotFound,
       {"MapDataset", "'nobody'"}},
  };
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  for (const Case& c : cases) {
    const Status status = session->Run({}, {c.dataset}).status();
    EXPECT_EQ(status.code(), c.code) << c.name << ": " << status;
    for (const std::string& word : c.words) {
      EXPECT_TRUE(absl::StrContains(status.message(), word)) << c.name << ": " << status;
    }
  }
  // What only shows while iterating is an error in the place of its element.
  EXPECT_TRUE(absl::StrContains(
      Text(scope, WithFunction(scope, "FilterDataset", range, vector, {}, {}, "predicate")),
      "'predicate' must return a bool scalar, got (bool [1])"));
  EXPECT_TRUE(absl::StrContains(Text(scope, WithFunction(scope, "MapDataset", range, fails)),
                                "division by zero"));
}

}  // namespace
}  // namespace millrace::data

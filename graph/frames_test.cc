// SPDX-License-Identifier: Apache-2.0
//
// Which frame each node is in. What is refused is a table of import_test.
#include "graph/frames.h"

#include <map>
#include <string>
#include <vector>

#include "graph/scope.h"
#include "graph/testing/tiny_ops.h"
#include "gtest/gtest.h"

// covers: graphs: every node is in one frame; a graph with frames that disagree is refused and
//   names the nodes

namespace millrace {
namespace {

using testing::Call;
using testing::Input;

Output Enter(const Scope& scope, const char* name, Output x, const char* frame,
             int64_t parallel_iterations = 10) {
  return NodeBuilder(scope.WithName(name), "Enter")
      .Input(x)
      .Attr("frame_name", frame)
      .Attr("parallel_iterations", parallel_iterations)
      .Finish()
      .output(0);
}

// "outer > inner": the frame and those around it, without the root.
std::string Path(const Frames& frames, int frame) {
  if (frame == 0) return "";
  const std::string around = Path(frames, frames.frame(frame).parent);
  return around.empty() ? frames.frame(frame).name : around + " > " + frames.frame(frame).name;
}

TEST(FramesTest, AGraphWithoutLoopsHasTheRootAlone) {
  Scope root;
  const Output x = Input(root, DT_FLOAT, {});
  const StatusOr<Frames> frames = Frames::Of(*root.graph());
  ASSERT_TRUE(frames.ok()) << frames.status();
  EXPECT_EQ(frames->num_frames(), 1);
  EXPECT_EQ(frames->FrameOf(x.node()->id()), 0);
  EXPECT_EQ(frames->frame(0).parallel_iterations, 1);
}

TEST(FramesTest, EnterAndExitRunInOneFrameAndLeadToAnother) {
  Scope root;
  const Output x = Input(root.WithName("x"), DT_FLOAT, {});
  const Output p = Input(root.WithName("p"), DT_BOOL, {});
  const Output enter = Enter(root, "enter", x, "outer", 7);
  const Output cond = Call(root.WithName("cond"), "LoopCond", {Enter(root, "ep", p, "outer", 7)});
  const Output merge = NodeBuilder(root.WithName("merge"), "Merge")
                           .Input(std::vector<Output>{enter, enter})
                           .Finish()
                           .output(0);
  const Output ways = Call(root.WithName("ways"), "Switch", {merge, cond});
  const Output inner = Enter(root, "inner", Output(ways.node(), 1), "inner");
  const Output inside = Call(root.WithName("inside"), "Floor", {inner});
  const Output left = Call(root.WithName("left"), "Exit", {inside});
  const Output next = Call(root.WithName("next"), "NextIteration", {left});
  ASSERT_TRUE(root.graph()->UpdateInput(merge.node(), 1, next.node(), 0).ok());
  const Output out = Call(root.WithName("out"), "Exit", {ways});
  Call(root.WithName("after"), "Floor", {out});

  const StatusOr<Frames> frames = Frames::Of(*root.graph());
  ASSERT_TRUE(frames.ok()) << frames.status();
  std::map<std::string, std::pair<std::string, std::string>> places;
  for (const auto& node : root.graph()->nodes()) {
    places[node->name()] = {Path(*frames, frames->FrameOf(node->id())),
                            Path(*frames, frames->OutputFrameOf(node->id()))};
  }
  const std::string in = "outer > inner";
  const std::map<std::string, std::pair<std::string, std::string>> want = {
      {"x", {"", ""}},
      {"p", {"", ""}},
      {"enter", {"", "outer"}},
      {"ep", {"", "outer"}},
      {"cond", {"outer", "outer"}},
      {"merge", {"outer", "outer"}},
      {"ways", {"outer", "outer"}},
      {"inner", {"outer", in}},
      {"inside", {in, in}},
      {"left", {in, "outer"}},
      {"next", {"outer", "outer"}},
      {"out", {"outer", ""}},
      {"after", {"", ""}}};
  EXPECT_EQ(places, want);
  ASSERT_EQ(frames->num_frames(), 3);
  EXPECT_EQ(frames->frame(1).parallel_iterations, 7);
  EXPECT_EQ(frames->frame(1).loop_cond, cond.node()->id());
  EXPECT_EQ(frames->frame(1).first_enter, enter.node()->id());
  EXPECT_EQ(frames->frame(2).depth, 2);
  EXPECT_EQ(frames->frame(2).parent, 1);
  EXPECT_EQ(frames->frame(2).loop_cond, -1);
  EXPECT_EQ(frames->frame(2).parallel_iterations, 10);
}

TEST(FramesTest, AnIllegalCycleIsNamed) {
  Scope root;
  const Output x = Input(root.WithName("x"), DT_FLOAT, {});
  const Output a = Call(root.WithName("a"), "Add", {x, x});
  const Output b = Call(root.WithName("b"), "Floor", {a});
  ASSERT_TRUE(root.graph()->UpdateInput(a.node(), 1, b.node(), 0).ok());
  EXPECT_EQ(Frames::Of(*root.graph()).status().message(),
            "Graph: a cycle must go through NextIteration into Merge, got the cycle 'a' -> 'b' -> "
            "'a'");
}

}  // namespace
}  // namespace millrace

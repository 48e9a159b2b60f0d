// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/step_edges.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/hash64.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/node_body.h"
#include "graph/place/waves.h"

namespace millrace {
namespace {

bool IsSend(const tensorflow::NodeDef& node) {
  return NodeBody::KindOf(node.op()) == NodeBody::Kind::kSend;
}
bool IsRecv(const tensorflow::NodeDef& node) {
  return NodeBody::KindOf(node.op()) == NodeBody::Kind::kRecv;
}

// The wave of a _Send; kNoWave when it has none.
StatusOr<int64_t> WaveOf(const tensorflow::NodeDef& send) {
  if (!HasAttr(send, kWaveAttr)) return int64_t{kNoWave};
  MR_ASSIGN_OR_RETURN(const int64_t wave, GetAttr<int64_t>(send, kWaveAttr));
  if (wave < 0) {
    return InvalidArgument("Partition: '", send.name(), "': attr '", kWaveAttr,
                           "' must be >= 0, got ", wave);
  }
  return wave;
}

// Whether a node needs something from another task, directly or not; by id. `received`: the names
// of the nodes that receive from other tasks.
std::vector<bool> NeedsOthers(const Graph& graph,
                              const absl::flat_hash_set<absl::string_view>& received) {
  std::vector<bool> needs(static_cast<size_t>(graph.num_node_ids()), false);
  std::vector<const Node*> stack;
  for (const auto& node : graph.nodes()) {
    if (node != nullptr && received.contains(node->name())) stack.push_back(node.get());
  }
  while (!stack.empty()) {
    const Node* const node = stack.back();
    stack.pop_back();
    if (needs[static_cast<size_t>(node->id())]) continue;
    needs[static_cast<size_t>(node->id())] = true;
    for (const Edge& edge : node->out_edges()) stack.push_back(edge.dst);
  }
  return needs;
}

// An edge between two tasks.
struct Crossing {
  RendezvousKey key;
  uint32_t number;
  bool immediate;
  int64_t wave;
  bool in_loop;
};

// All edges of one direction with `task`, sorted.
StepEdges::Peer PeerOf(const std::string& task, std::vector<Crossing>* edges, bool is_send) {
  std::sort(edges->begin(), edges->end(),
            [](const Crossing& a, const Crossing& b) { return a.key.text < b.key.text; });
  StepEdges::Peer peer;
  peer.task = task;
  std::map<int64_t, int> groups;  // by wave
  for (Crossing& edge : *edges) {
    if (edge.in_loop) continue;
    peer.fingerprint = Hash64(edge.key.text, peer.fingerprint + 1);
    if (is_send) {
      peer.immediate.push_back(edge.immediate);
      peer.num_immediate += edge.immediate ? 1 : 0;
      int group = StepEdges::kNoGroup;
      if (edge.wave != kNoWave) {
        group = groups.emplace(edge.wave, static_cast<int>(groups.size())).first->second;
        peer.group_sizes.resize(groups.size());
        ++peer.group_sizes[static_cast<size_t>(group)];
      }
      peer.groups.push_back(group);
    }
    peer.wire_keys.push_back(std::move(edge.key.text));
    peer.numbers.push_back(edge.number);
  }
  peer.loop_fingerprint = peer.fingerprint;
  for (Crossing& edge : *edges) {
    if (!edge.in_loop) continue;
    peer.loop_fingerprint = Hash64(edge.key.text, peer.loop_fingerprint + 1);
    peer.loop_keys.push_back(std::move(edge.key.text));
    peer.loop_numbers.push_back(edge.number);
  }
  return peer;
}

}  // namespace

StatusOr<StepEdges> StepEdges::Of(const Graph& graph, absl::Span<const tensorflow::NodeDef> wire,
                                  std::shared_ptr<const TransferTable> plan,
                                  absl::string_view own_task) {
  StepEdges result;
  std::map<std::string, std::vector<Crossing>> sends, recvs;  // by task
  absl::flat_hash_set<absl::string_view> received;
  for (const tensorflow::NodeDef& node : wire) {
    if (!IsRecv(node)) continue;
    const StatusOr<std::string> src = GetAttr<std::string>(node, "send_device");
    const StatusOr<std::string> task = src.ok() ? TaskOfDevice(*src) : src;
    if (!task.ok() || *task != own_task) received.insert(node.name());
  }
  const std::vector<bool> late = NeedsOthers(graph, received);
  result.is_sent.resize(plan == nullptr ? 0 : plan->size(), false);
  for (const tensorflow::NodeDef& node : wire) {
    const bool is_send = IsSend(node);
    if (!is_send && !IsRecv(node)) continue;
    const StatusOr<bool> client = GetAttr<bool>(node, "client_terminated");
    if (client.ok() && *client) continue;
    MR_ASSIGN_OR_RETURN(RendezvousKey key, RendezvousKey::Of(&node));
    MR_ASSIGN_OR_RETURN(const std::string task,
                        TaskOfDevice(is_send ? key.dst_device : key.src_device));
    if (task == own_task) continue;
    const uint32_t number =
        plan == nullptr ? Transfer::kUnnumbered : plan->NumberOfNode(node.name());
    if (number == Transfer::kUnnumbered) {
      return absl::InternalError(
          absl::StrCat("Partition: '", node.name(), "' must have a number in its plan, got none"));
    }
    const Node* const planned = graph.FindNode(node.name());
    if (planned == nullptr) {
      return absl::InternalError(
          absl::StrCat("Partition: '", node.name(), "' must be a node of its plan, got none"));
    }
    if (is_send) result.is_sent[number] = true;
    if (plan->IsInLoop(number)) {
      if (is_send) {
        result.loop_sends.emplace(key.text, number);
      } else {
        result.loop_recvs.emplace(number, LoopRecv{task, key.text});
      }
      (is_send ? sends : recvs)[task].push_back({std::move(key), number, false, kNoWave, true});
      continue;
    }
    int64_t wave = kNoWave;
    if (is_send) {
      MR_ASSIGN_OR_RETURN(wave, WaveOf(node));
    }
    const bool immediate = wave == kNoWave && !late[static_cast<size_t>(planned->id())];
    (is_send ? sends : recvs)[task].push_back({std::move(key), number, immediate, wave, false});
  }
  for (auto& [task, edges] : sends) {
    result.sends.push_back(PeerOf(task, &edges, /*is_send=*/true));
    const StepEdges::Peer& peer = result.sends.back();
    result.num_sends += static_cast<int64_t>(peer.numbers.size());
    for (size_t i = 0; i < peer.loop_numbers.size(); ++i) {
      result.loop_sends_by_number.emplace(
          peer.loop_numbers[i], LoopSend{result.sends.size() - 1, static_cast<uint32_t>(i)});
    }
  }
  for (auto& [task, edges] : recvs) {
    result.recvs.push_back(PeerOf(task, &edges, /*is_send=*/false));
  }
  result.transfers = std::move(plan);
  return result;
}

}  // namespace millrace

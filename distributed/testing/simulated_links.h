// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_SIMULATED_LINKS_H_
#define MILLRACE_DISTRIBUTED_TESTING_SIMULATED_LINKS_H_

// SimulatedLinks: the links between the lives of one simulation, next to the calls of its
// SimulatedNetwork. Each life has a LinkTable; bytes travel on SimulatedWays, whose delays and cuts
// the simulation's seed decides, so whole frames, credit and greetings are simulated.
//
// Faults are those of the network, as TCP has them: nothing is lost in the middle, nothing
// overtakes.
//   * lost_request: the way is lost before a RUN arrives; lost_answer: after it has begun. Both
//   ends
//     hear it within 30 s;
//   * long_delay: bytes, and all behind them, take long;
//   * Cut: nothing arrives, and links notice it themselves (PING);
//   * Kill: the way is lost; who dials the task afterwards finds its next life.
//
// `within_host`: all tasks are on one host and have pairs of links (link_table.h). Of a pair that
// is lost by a fault either the witness is or both are, as the seed says; some offers are taken in
// vain.
//
// The network's observer hears of RUN and END as of calls: the number of a call is drawn when RUN
// is sent.
//
// Threads, lifetime: as SimulatedNetwork, which outlives it. Failure: as LinkTable.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "core/status.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/peer_links.h"
#include "distributed/link/same_host.h"
#include "distributed/link/testing/simulated_wire.h"
#include "distributed/master/link_parts.h"
#include "distributed/testing/simulated_network.h"
#include "distributed/testing/simulation.h"

namespace millrace {

class SimulatedLinks {
 public:
  using Life = SimulatedNetwork::Life;

  SimulatedLinks(Simulation* simulation, SimulatedNetwork* network, bool within_host);
  ~SimulatedLinks();

  // For the options of a life's worker and master, before it is attached.
  PeerLinks* of(const std::shared_ptr<Life>& life);
  std::shared_ptr<LinkParts> parts(const std::shared_ptr<Life>& life);
  // Behind the network's: others can reach it.
  void Attach(const std::shared_ptr<Life>& life);
  // Behind the network's, before the worker is destroyed: its ends have heard of it when this
  // returns.
  void Kill(const std::shared_ptr<Life>& life);

  // Nothing arrives from `from` at `to`.
  void Cut(const std::string& from, const std::string& to);
  void HealAll();

 private:
  class Of;
  class End;
  class Host;
  class ObservedLink;
  class Time;
  struct Way {
    std::shared_ptr<SimulatedWay> way;
    std::shared_ptr<Life> dialler, callee;  // ends 0 and 1; no callee until it arrives
    std::string to;
    bool is_within_host = false;
  };
  struct Offer {
    std::shared_ptr<Life> life;
    SameHost::Came came;
  };

  Of* Find(const std::shared_ptr<Life>& life);
  StatusOr<std::unique_ptr<ByteWire>> Dial(const std::shared_ptr<Life>& from,
                                           const std::string& to);
  void Arrive(Way* way, Time* time);
  StatusOr<std::unique_ptr<ByteWire>> Take(const std::shared_ptr<Life>& from,
                                           const std::string& offer);
  // The ways between two tasks are lost; perhaps not those within the host.
  void Break(const std::string& task, const std::string& other);
  bool IsCut(const std::string& from, const std::string& to) const {
    return cut_.count({from, to}) != 0;
  }
  // The number of the call that RUN of the step on `task` is, for the observer.
  int64_t NumberOf(int64_t step_id, const std::string& task);

  Simulation* const simulation_;
  SimulatedNetwork* const network_;
  const bool within_host_;
  int64_t num_offers_ = 0;
  std::map<std::string, Offer> offers_;  // that nobody has taken
  std::map<std::shared_ptr<Life>, std::unique_ptr<Of>> of_;
  std::map<std::string, Of*> up_;
  std::deque<std::unique_ptr<Time>> times_;  // of ways, as long as events may be left
  std::deque<Way> ways_;
  std::set<std::pair<std::string, std::string>> cut_;
  std::map<std::pair<int64_t, std::string>, int64_t> numbers_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_SIMULATED_LINKS_H_

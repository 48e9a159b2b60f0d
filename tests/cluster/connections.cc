// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/connections.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

struct Socket {
  std::string local, remote;  // "address:port", as the kernel writes them
};

// Established connections by inode.
std::map<std::string, Socket> Established() {
  std::map<std::string, Socket> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      // An address of the older protocol in a socket of the newer one.
      const auto plain = [](const std::string& address) {
        return address.size() > 13 ? address.substr(address.size() - 13) : address;
      };
      if (state == "01") sockets[inode] = {plain(local), plain(remote)};
    }
  }
  return sockets;
}

}  // namespace

std::set<std::pair<std::string, std::string>> ConnectionsBetween(
    const std::map<std::string, pid_t>& processes) {
  const std::map<std::string, Socket> established = Established();
  std::map<std::string, std::vector<std::string>> owners;  // by "local remote"
  std::vector<std::pair<std::string, Socket>> ends;
  for (const auto& [name, pid] : processes) {
    std::error_code error;
    const std::filesystem::path files = absl::StrCat("/proc/", pid, "/fd");
    for (std::filesystem::directory_iterator file(files, error), end; !error && file != end;
         file.increment(error)) {
      std::error_code gone;
      const std::string target = std::filesystem::read_symlink(file->path(), gone).string();
      if (gone || !absl::StartsWith(target, "socket:[")) continue;
      const auto found = established.find(target.substr(8, target.size() - 9));
      if (found == established.end()) continue;
      owners[absl::StrCat(found->second.local, " ", found->second.remote)].push_back(name);
      ends.emplace_back(name, found->second);
    }
  }
  std::set<std::pair<std::string, std::string>> pairs;
  for (const auto& [name, socket] : ends) {
    const auto other = owners.find(absl::StrCat(socket.remote, " ", socket.local));
    if (other == owners.end()) continue;
    for (const std::string& peer : other->second) {
      pairs.insert(name < peer ? std::pair(name, peer) : std::pair(peer, name));
    }
  }
  return pairs;
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/process_state.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

// What each descriptor is: "socket:[12345]", a path, ...
std::vector<std::string> DescriptorsOf(pid_t process) {
  std::vector<std::string> targets;
  std::error_code error;
  const std::filesystem::path files = absl::StrCat("/proc/", process, "/fd");
  for (std::filesystem::directory_iterator file(files, error), end; !error && file != end;
       file.increment(error)) {
    std::error_code gone;
    targets.push_back(std::filesystem::read_symlink(file->path(), gone).string());
  }
  return targets;
}

// Names by inode. A connection that was accepted has the name of who listens.
std::map<std::string, std::string> NamedUnixSockets() {
  std::map<std::string, std::string> sockets;
  std::ifstream file("/proc/net/unix");
  std::string line;
  std::getline(file, line);  // the heading
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string slot, references, protocol, flags, type, state, inode, name;
    fields >> slot >> references >> protocol >> flags >> type >> state >> inode >> name;
    if (!name.empty()) sockets.emplace(inode, name);
  }
  return sockets;
}

}  // namespace

int64_t RssBytes(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/statm"));
  int64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int NumFds(pid_t process) { return static_cast<int>(DescriptorsOf(process).size()); }

bool IsStopped(pid_t process) {
  std::ifstream file(absl::StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "State:")) return absl::StrContains(line, "T (stopped)");
  }
  return false;
}

std::set<std::string> UnixSocketsOf(pid_t process) {
  const std::map<std::string, std::string> named = NamedUnixSockets();
  std::set<std::string> names;
  for (const std::string& target : DescriptorsOf(process)) {
    if (!absl::StartsWith(target, "socket:[")) continue;
    const auto found = named.find(target.substr(8, target.size() - 9));
    if (found != named.end()) names.insert(found->second);
  }
  return names;
}

std::set<std::string> UnixSockets() {
  std::set<std::string> names;
  for (const auto& [inode, name] : NamedUnixSockets()) names.insert(name);
  return names;
}

std::set<std::string> SharedMemoryOf(pid_t process) {
  std::set<std::string> files;
  std::ifstream file(absl::StrCat("/proc/", process, "/maps"));
  for (std::string line; std::getline(file, line);) {
    for (const absl::string_view where : {"/dev/shm/", "/memfd:"}) {
      const size_t found = line.find(std::string(where));
      if (found != std::string::npos) files.insert(line.substr(found));
    }
  }
  return files;
}

}  // namespace millrace

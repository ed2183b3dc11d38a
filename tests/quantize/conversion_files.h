// What the tests of conversion share: sources, directories compared byte by byte, the program as a process.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/sha256.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/test_files.h"

namespace verbatim::quantize {

// Contents by file name.
inline std::map<std::string, std::string> contents_of(const std::filesystem::path& directory) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    out[entry.path().filename().string()] = checkpoint::read_bytes(entry.path());
  return out;
}

// The first file that differs, or an empty text.
inline std::string first_difference(const std::map<std::string, std::string>& a,
                                    const std::map<std::string, std::string>& b) {
  for (const auto& [name, bytes] : a)
    if (!b.contains(name) || b.at(name) != bytes) return name + (b.contains(name) ? " differs" : " is missing");
  for (const auto& [name, bytes] : b)
    if (!a.contains(name)) return name + " is there as well";
  return {};
}

struct Finished {
  int code = -1;     // exit code; -1 when killed
  std::string text;  // stdout and stderr
  double seconds = 0;
};

// Runs `arguments` (the first is the program), with `environment` added, and kills it after `kill_after` seconds if
// that is not negative.
inline Finished run_program(const std::vector<std::string>& arguments, double kill_after = -1,
                            const std::vector<std::string>& environment = {}) {
  const auto start = std::chrono::steady_clock::now();
  auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::dup2(pipe[1], STDERR_FILENO);
    for (const std::string& variable : environment) ::putenv(const_cast<char*>(variable.c_str()));
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(pipe[1]);
  Finished out;
  ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
  char buffer[4096];
  bool killed = false;
  for (;;) {
    const ssize_t n = ::read(pipe[0], buffer, sizeof buffer);
    if (n > 0) {
      out.text.append(buffer, static_cast<size_t>(n));
      continue;
    }
    if (n == 0) break;  // the child is gone
    if (kill_after >= 0 && elapsed() >= kill_after && !killed) {
      ::kill(child, SIGKILL);
      killed = true;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  ::close(pipe[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  out.seconds = elapsed();
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

// Every file under a final name is whole: what of `reference` is there has its bytes, and shards besides are none.
inline std::string first_unwhole(const std::filesystem::path& out,
                                 const std::map<std::string, std::string>& reference) {
  for (const auto& [name, bytes] : contents_of(out)) {
    if (name == "conversion_journal.jsonl") continue;
    if (name.ends_with(".partial")) return name + " was left";
    if (!reference.contains(name)) return name + " is there as well";
    if (reference.at(name) != bytes) return name + " is not whole";
  }
  return {};
}

}  // namespace verbatim::quantize

// Which shards of a conversion are done: a line of JSON each, synced before the next is begun. It lives in the output
// directory until the manifest is written, and its lock keeps a second converter out.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "quantize/manifest.h"

namespace verbatim::quantize {

inline constexpr const char* kJournalName = "conversion_journal.jsonl";

class Journal {
 public:
  // Begins a journal, or with `resume` goes on with the one that is there. A line that was cut short is dropped, and so
  // is one whose shard is not there at its size. Throws Error(kUsage) when the journal there is of another conversion
  // (`identity` differs), Error(kIo) when another process holds it.
  Journal(const std::filesystem::path& directory, const std::string& identity, bool resume);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // In the order in which they were appended.
  const std::vector<ShardRecord>& done() const { return done_; }
  void append(const ShardRecord& record);
  // Deletes the file.
  void remove();

 private:
  void read_lines(const std::string& text, const std::string& identity);
  void write_line(const std::string& line);

  std::filesystem::path directory_, path_;
  int fd_ = -1;
  std::vector<ShardRecord> done_;
};

}  // namespace verbatim::quantize

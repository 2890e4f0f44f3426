#pragma once

#include <levin/core/base/descriptor.h>
#include <levin/core/data/dataset.h>
#include <levin/core/data/documents/document_batches.h>
#include <levin/core/data/documents/token_documents.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace levin::data {

/// Pieces of documents that are put into rows: the longest of a window first, each into the first row that has room for
/// it. Rows that are not full stay open for the next window.
class RowPacker {
 public:
  /// One place of a row: a token and the one that follows it, or kIgnoredToken.
  struct Place {
    int32_t token;
    int32_t next;
  };
  using Piece = std::vector<Place>;
  using Row = std::vector<Piece>;  ///< one behind the other, at most `context` places together

  explicit RowPacker(int64_t context) : context_(context) {}
  /// Puts the pieces of a window into rows; returns the rows that are complete.
  std::vector<Row> add(std::vector<Piece> window);
  /// Returns the rows that are left.
  std::vector<Row> finish();

 private:
  struct OpenRow {
    Row pieces = {};
    int64_t room = 0;
  };
  int64_t context_;
  std::vector<OpenRow> open_;
};

/// What was packed.
struct PackingCounts {
  int64_t documents = 0;
  int64_t rows = 0;
  int64_t filled = 0;     ///< places with a token
  int64_t too_long = 0;   ///< documents that were truncated or split
  int64_t unlearned = 0;  ///< documents, or pieces of them, without a token that is learned, which are left out
};

/// How documents are packed.
struct PackingOptions {
  int64_t context = 1024;
  int64_t window = 8192;  ///< documents
  LongDocuments long_documents = LongDocuments::kTruncate;
};

/// Rows of `context` places that several documents share, in a file that is made once: "tokens" int64 [N, context],
/// "next", the token that follows each inside of its document where it is learned, else -100, and "positions", from 0
/// on in each document, -1 in the places that are left over at a row's end.
class PackedRows : public Dataset {
 public:
  /// Packs documents, of which one window at a time is in memory, into the file of a path.
  static void make(const std::string& path, const TokenDocuments& documents, const PackingOptions& options);
  /// Opens such a file. Throws levin::Error where it is damaged.
  PackedRows(const std::string& path, int64_t context);

  int64_t size() const override { return counts_.rows; }
  Batch get_batch(std::span<const int64_t> indices, Generator& generator) const override;
  const PackingCounts& counts() const { return counts_; }

 private:
  std::string path_;
  int64_t context_;
  PackingCounts counts_;
  Descriptor file_;
};

}  // namespace levin::data

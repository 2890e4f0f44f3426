#pragma once

namespace levin::data {

/// What a column of JSON lines has, and a batch of it: texts; int64, float or bool [N]; of lists, whose lengths may
/// differ, int64 or float [N, longest of the batch], padded with 0, beside NAME_length and NAME_mask (see pad_collate).
enum class JsonColumn { kText, kInteger, kNumber, kBoolean, kIntegers, kNumbers };

}  // namespace levin::data

// What programs and tests include beside what the library's sources do.
#pragma once

#include "precompiled.h"

#include <torch/torch.h>

#ifdef GTEST_HAS_PTHREAD  // in tests
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#endif

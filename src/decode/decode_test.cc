// The parts of decode/ that need no model: files of models good and broken, digests, the stop flag.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "decode/model_file.h"
#include "decode/plugin.h"
#include "decode/session.h"
#include "decode/sha256.h"
#include "decode/stop.h"
#include "ggml.h"
#include "gguf.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

class ModelFileTest : public FolderTest {
 protected:
  // A GGUF file of a made-up shape: 3 layers, 4 query heads, KV heads as given, head size 64.
  void WriteModel(const std::vector<int32_t>& kv_heads) {
    gguf_context* gguf = gguf_init_empty();
    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_u32(gguf, "llama.block_count", 3);
    gguf_set_val_u32(gguf, "llama.attention.head_count", 4);
    gguf_set_val_u32(gguf, "llama.embedding_length", 256);
    gguf_set_val_u32(gguf, "llama.context_length", 4096);
    if (kv_heads.size() == 1) {
      gguf_set_val_u32(gguf, "llama.attention.head_count_kv", kv_heads[0]);
    } else {
      gguf_set_arr_data(gguf, "llama.attention.head_count_kv", GGUF_TYPE_INT32, kv_heads.data(),
                        kv_heads.size());
    }
    ggml_context* ggml = ggml_init({.mem_size = 1 << 20, .mem_buffer = nullptr, .no_alloc = false});
    ggml_tensor* tensor = ggml_new_tensor_2d(ggml, GGML_TYPE_F32, 256, 100);
    ggml_set_name(tensor, "token_embd.weight");
    gguf_add_tensor(gguf, tensor);
    ASSERT_TRUE(gguf_write_to_file(gguf, path_.c_str(), false));
    ggml_free(ggml);
    gguf_free(gguf);
  }

  const std::string path_ = Path("model.gguf");
};

TEST_F(ModelFileTest, ReadsShapeAndKvBytes) {
  WriteModel({2});
  const Result<ModelFile> model = ReadModelFile(path_);
  ASSERT_TRUE(model.ok()) << model.error();
  EXPECT_EQ(model->architecture, "llama");
  EXPECT_EQ(model->n_layers, 3);
  EXPECT_EQ(model->n_positions, 4096);
  EXPECT_EQ(model->k_head_dim, 64);
  // 3 layers x 2 heads x 64 values x 2 bytes, K and V.
  EXPECT_EQ(model->KvBytesPerToken("f16", "f16").value(), 3u * 2 * 64 * 2 * 2);
  // q8_0: 34 bytes for 32 values.
  EXPECT_EQ(model->KvBytesPerToken("q8_0", "f32").value(), 3u * 2 * (68 + 256));
  const Result<uint64_t> unknown = model->KvBytesPerToken("q4_0", "f16");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().find("'q4_0'"), std::string::npos);
}

TEST_F(ModelFileTest, ReadsKvHeadsLayerByLayer) {
  WriteModel({2, 0, 1});
  const Result<ModelFile> model = ReadModelFile(path_);
  ASSERT_TRUE(model.ok()) << model.error();
  EXPECT_EQ(model->n_kv_heads, (std::vector<int>{2, 0, 1}));
  EXPECT_EQ(model->KvBytesPerToken("f16", "f16").value(), 3u * 64 * 2 * 2);
}

// Cut at any length, the file is refused with a reason: never loaded, never a crash.
TEST_F(ModelFileTest, RefusesEveryTruncation) {
  WriteModel({2});
  const auto full = fs::file_size(path_);
  const std::string whole = [&] {
    std::ifstream in(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }();
  ASSERT_EQ(whole.size(), full);
  for (size_t length : {size_t{0}, size_t{3}, size_t{4}, size_t{20}, size_t{100}, size_t{300},
                        whole.size() / 2, whole.size() - 1}) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc).write(whole.data(), length);
    const Result<ModelFile> model = ReadModelFile(path_);
    ASSERT_FALSE(model.ok()) << length << " bytes";
    EXPECT_NE(model.error().find(path_), std::string::npos) << model.error();
  }
  EXPECT_NE(ReadModelFile(path_).error().find("truncated"), std::string::npos);
}

TEST_F(ModelFileTest, RefusesWhatIsNoModel) {
  EXPECT_NE(ReadModelFile(path_).error().find("No such file"), std::string::npos);
  EXPECT_NE(ReadModelFile(folder_).error().find("is a directory"), std::string::npos);
  std::ofstream(path_) << "hello, this is text";
  EXPECT_NE(ReadModelFile(path_).error().find("not a GGUF model"), std::string::npos);
}

class Sha256 : public FolderTest {};

TEST_F(Sha256, KnownDigests) {
  // FIPS 180-4 examples.
  EXPECT_EQ(TextSha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(TextSha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(FileSha256(Write("abc", "abc")).value(), TextSha256("abc"));
  EXPECT_FALSE(FileSha256(Path("none")).ok());
}

TEST(Stop, SignalSetsTheFlagOnce) {
  InstallStopHandler();
  EXPECT_FALSE(StopRequested());
  std::raise(SIGINT);
  EXPECT_TRUE(StopRequested());
  // The second one must find the default action.
  struct sigaction action;
  ASSERT_EQ(sigaction(SIGINT, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
  ClearStop();
}

TEST(Plugin, MissingLibraryIsNamed) {
  setenv("CONDENSE_PLUGIN", "/nonexistent/libggml-condense.so", 1);
  const Result<std::string> path = Plugin::FindPath();
  ASSERT_FALSE(path.ok());
  EXPECT_NE(path.error().find("/nonexistent/libggml-condense.so"), std::string::npos);
  unsetenv("CONDENSE_PLUGIN");
  EXPECT_FALSE(Plugin::Load("/nonexistent/libggml-condense.so").ok());
}

TEST(StepCounts, ReadShareCountsSummaries) {
  StepCounts counts;
  EXPECT_EQ(counts.ReadShare(), 1);
  condense_layer_counters layer = {};
  layer.sparse_steps = 2;
  layer.fallback_steps = 1;
  layer.k_bytes = 100;
  layer.v_bytes = 50;
  layer.summary_bytes = 25;
  layer.dense_bytes = 700;
  counts.Add(layer);
  counts.Add(layer);
  EXPECT_EQ(counts.steps(), 6u);
  EXPECT_DOUBLE_EQ(counts.ReadShare(), 0.25);
}

TEST(GreedyToken, LowestAmongEquals) {
  const std::vector<float> logits = {1, 4, 4, 2};
  EXPECT_EQ(GreedyToken(logits), 1);
}

}  // namespace
}  // namespace condense

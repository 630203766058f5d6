// The report as a browser sees it: headless Chromium loads the page from a file, all charts are
// drawn, nothing is said on the console, and nothing is asked of a network. CONDENSE_CHROMIUM names
// another browser binary. The pages and the browser's output stay in the build folder to be looked
// at.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "report/report.h"
#include "tests/report/made_lab.h"
#include "tests/report/made_records.h"

namespace condense {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

std::string FindChromium() {
  if (const char* named = std::getenv("CONDENSE_CHROMIUM")) return named;
  std::stringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(path, folder, ':');)
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
      if (access((fs::path(folder) / name).c_str(), X_OK) == 0) return fs::path(folder) / name;
  return "";
}

int Count(const std::string& text, const std::string& what) {
  int n = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + what.size())) ++n;
  return n;
}

// The page as elements: without what stands inside its scripts.
std::string WithoutScripts(const std::string& dom) {
  std::string out;
  for (size_t at = 0; at < dom.size();) {
    const size_t open = std::min(dom.find("<script", at), dom.size());
    out += dom.substr(at, open - at);
    const size_t close = dom.find("</script>", open);
    at = close == dom.npos ? dom.size() : close + 9;
  }
  return out;
}

// Requests of pages from files, as the network log names them; the browser's own have another site.
int CountPageRequests(const std::string& net_log, const std::string& url) {
  std::stringstream lines(net_log);
  int n = 0;
  for (std::string line; std::getline(lines, line);)
    n += line.find("\"network_isolation_key\":\"file://") != line.npos &&
         line.find("\"url\":\"" + url) != line.npos;
  return n;
}

struct Loaded {
  std::string dom, log, net_log;
};

class ReportInBrowser : public testing::Test {
 protected:
  void SetUp() override {
    chromium_ = FindChromium();
    if (chromium_.empty())
      GTEST_SKIP()
          << "no chromium, chromium-browser or google-chrome in PATH: the page was not looked at";
    folder_ = fs::path(CONDENSE_REPORT_OUT) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  // Writes the report of these records and loads it at this width.
  Loaded Load(const MadeRun& made, int width) {
    const fs::path records = folder_ / "records.jsonl", page = folder_ / "report.html";
    std::ofstream(records, std::ios::binary) << ToLines(MakeRecords(made));
    const Status status = WriteReport({records}, page);
    EXPECT_TRUE(status.ok()) << status.error();
    return LoadPage(page, width);
  }

  // A folder of the lab.
  std::string LabFolder(const MadeLab& made) {
    fs::create_directories(folder_ / "lab");
    std::ofstream(folder_ / "lab/records-0.jsonl", std::ios::binary)
        << ToLines(MakeLabRecords(made));
    return folder_ / "lab";
  }

  // The report of these paths with the checks of page_checks.js behind it.
  fs::path CheckedPage(const std::vector<std::string>& paths) {
    const fs::path page = folder_ / "report.html";
    const Status status = WriteReport(paths, page);
    EXPECT_TRUE(status.ok()) << status.error();
    std::ofstream(page, std::ios::app | std::ios::binary)
        << "<script>" << ReadAll(CONDENSE_PAGE_CHECKS) << "</script>";
    return page;
  }

  // A page that frames this one at a width that no browser window has, and repeats what it tells.
  fs::path Framed(const fs::path& page, int width) {
    fs::path frame = folder_ / "frame.html";
    std::ofstream(frame)
        << "<!DOCTYPE html><meta name=\"color-scheme\" content=\"light dark\"><iframe src=\""
        << page.filename().string() << "\" width=\"" << width
        << "\" height=\"4000\"></iframe><script>addEventListener('message', (event) => "
           "Object.assign(document.body.dataset, event.data));</script>";
    return frame;
  }

  Loaded LoadPage(const fs::path& page, int width, bool dark = false) {
    const fs::path dom = folder_ / "dom.html", log = folder_ / "log.txt",
                   net = folder_ / "net.json";
    const std::string command =
        "timeout 120 '" + chromium_ + "' --headless=new --disable-gpu --no-first-run" +
        (geteuid() == 0 ? " --no-sandbox" : "") +
        " --disable-background-networking --disable-component-update --disable-sync"
        " --disable-default-apps --disable-extensions --host-resolver-rules='MAP * ~NOTFOUND' "
        "--blink-settings=preferredColorScheme=" +
        (dark ? "0" : "1") + " --user-data-dir='" + (folder_ / "profile").string() +
        "' --window-size=" + std::to_string(width) +
        ",2000 --enable-logging=stderr --v=0 --virtual-time-budget=20000 --log-net-log='" +
        net.string() + "' --dump-dom 'file://" + page.string() + "' >'" + dom.string() + "' 2>'" +
        log.string() + "'";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << ReadAll(log);
    return {WithoutScripts(ReadAll(dom)), ReadAll(log), ReadAll(net)};
  }

  std::string chromium_;
  fs::path folder_;
};

void ExpectClean(const Loaded& loaded, int n_charts) {
  EXPECT_EQ(Count(loaded.dom, "<svg"), n_charts);
  EXPECT_EQ(Count(loaded.dom, "data-drawn=\"yes\""), n_charts);
  EXPECT_EQ(Count(loaded.dom, "could not be drawn"), 0);
  // Chromium logs each console message with this word.
  EXPECT_EQ(Count(loaded.log, "CONSOLE"), 0) << loaded.log;
  for (const char* scheme : {"http://", "https://", "ws://", "wss://"})
    EXPECT_EQ(CountPageRequests(loaded.net_log, scheme), 0) << scheme;
}

TEST_F(ReportInBrowser, DrawsEveryChartOfAFullRun) {
  const Loaded loaded = Load({.odd_text = true}, 1280);
  ExpectClean(loaded, 6);
  // The made texts try to close the script; nothing of theirs ran or became an element.
  EXPECT_EQ(Count(loaded.dom, "<script>alert"), 0);
  EXPECT_EQ(Count(loaded.dom, "aria-label=\"Decisions kept, teacher-forced, 5 policies"), 1);
}

TEST_F(ReportInBrowser, DrawsWhatAnInterruptedRunHas) {
  ExpectClean(Load({.text_teacher = false, .steps = false, .control = false, .n_finished = 2}, 390),
              5);
}

TEST_F(ReportInBrowser, DrawsTheControlWithoutPolicies) {
  // The control alone still shows its margins.
  ExpectClean(Load({.policies = {}}, 390), 1);
}

// Long names and many policies: tables scroll by themselves, the page never does sideways.
TEST_F(ReportInBrowser, FitsANarrowScreen) {
  MadeRun made{
      .model = std::string("a-model-with-a-very-long-name-") + std::string(120, 'x') + ".gguf",
      .policies = {},
      .odd_text = true};
  for (int blocks = 1; blocks <= 12; ++blocks)
    made.policies.push_back("mean:blocks=" + std::to_string(blocks) +
                            ",window=64,share=kv_group,reuse=4,dense_layers=0-1");
  const fs::path records = folder_ / "records.jsonl", page = folder_ / "report.html";
  std::ofstream(records, std::ios::binary) << ToLines(MakeRecords(made));
  ASSERT_TRUE(WriteReport({records}, page).ok());
  std::ofstream(page, std::ios::app)
      << "<script>setTimeout(() => { const root = document.documentElement;"
         "document.body.dataset.sideways = root.scrollWidth - root.clientWidth; }, 5000);</script>";
  const Loaded loaded = LoadPage(page, 390);
  ExpectClean(loaded, 6);
  // The browser's narrowest window is wider than 390; it is what can be had without a debugger.
  EXPECT_EQ(Count(loaded.dom, "data-sideways=\"0\""), 1)
      << loaded.dom.substr(std::min(loaded.dom.find("data-sideways"), loaded.dom.size()), 40);
}

// Twenty policies at four budgets: all six charts, the page does not go sideways, and it stays
// small enough to be sent around.
TEST_F(ReportInBrowser, DrawsManyPoliciesAtEqualBytes) {
  MadeRun made{.policies = {}, .budgets = {0.02, 0.05, 0.1, 0.2}};
  for (int i = 0; i < 20; ++i) made.policies.push_back("policy_" + std::string(1, 'a' + i));
  const Loaded loaded = Load(made, 1280);
  ExpectClean(loaded, 6);
  EXPECT_LT(fs::file_size(folder_ / "report.html"), 5'000'000u);
  EXPECT_EQ(Count(loaded.dom, "the least possible here is 7.5 %"), 1);
  ExpectClean(LoadPage(folder_ / "report.html", 390), 6);
}

// What page_checks.js found: nothing, at this width and in this scheme, with all charts drawn.
void ExpectReadable(const Loaded& loaded, const std::string& width, bool dark, int n_charts) {
  EXPECT_EQ(Count(loaded.dom, "data-checked=\"" + width + "\""), 1);
  EXPECT_EQ(Count(loaded.dom, std::string("data-dark=\"") + (dark ? "true" : "false") + "\""), 1);
  EXPECT_EQ(Count(loaded.dom, "data-drawn=\"" + std::to_string(n_charts) + "\""), 1);
  EXPECT_EQ(Count(loaded.dom, "data-problems=\"\""), 1)
      << loaded.dom.substr(std::min(loaded.dom.find("data-problems"), loaded.dom.size()), 2000);
  EXPECT_EQ(Count(loaded.log, "CONSOLE"), 0) << loaded.log;
}

constexpr int kLabCharts = 22;

TEST_F(ReportInBrowser, ShowsTheLabInBothSchemes) {
  const fs::path page = CheckedPage({LabFolder({.models = {"made-a.gguf", "made-b.gguf"}})});
  for (const bool dark : {false, true})
    ExpectReadable(LoadPage(page, 1280, dark), "1280 px", dark, kLabCharts + 12);
}

TEST_F(ReportInBrowser, ShowsTheLabOnAPhone) {
  const fs::path page = CheckedPage({LabFolder({})});
  for (const bool dark : {false, true})
    ExpectReadable(LoadPage(Framed(page, 390), 1280, dark), "390 px", dark, kLabCharts);
}

TEST_F(ReportInBrowser, ShowsALabThatWasStopped) {
  // One cell is done, of a policy alone: no interval, no control, one setting.
  std::vector<nlohmann::json> records = MakeLabRecords({.policies = {},
                                                        .contexts = {2048},
                                                        .n_prefixes = 1,
                                                        .control = false,
                                                        .needles = false,
                                                        .masses = false});
  fs::create_directories(folder_ / "lab");
  std::ofstream(folder_ / "lab/records-0.jsonl") << ToLines(records) << "{\"schema\":1,\"rec";
  const fs::path page = CheckedPage({folder_ / "lab"});
  const Loaded loaded = LoadPage(page, 1280);
  EXPECT_EQ(Count(loaded.dom, "data-problems=\"\""), 1);
  EXPECT_EQ(Count(loaded.log, "CONSOLE"), 0) << loaded.log;
}

// The same checks see a page that is wrong.
TEST_F(ReportInBrowser, ChecksSeeAPageThatSpeaksAndAsks) {
  const fs::path page = folder_ / "bad.html";
  std::ofstream(page)
      << "<!DOCTYPE html><script>console.error('made error')</script>"
         "<img src='http://localhost:9/made.png'><div class='chart' id='x'></div><p id='x' "
         "style='color: #999; background: #fff; width: 3000px'>faint and wide</p><select></select>"
         "<h4>deep</h4><script>"
      << ReadAll(CONDENSE_PAGE_CHECKS) << "</script>";
  const Loaded loaded = LoadPage(page, 390);
  EXPECT_GT(Count(loaded.log, "CONSOLE"), 0);
  EXPECT_GT(CountPageRequests(loaded.net_log, "http://localhost:9/made.png"), 0);
  for (const char* problem : {"id x twice", "chart x has no name", "a control without a label",
                              "comes after level 0", "has a contrast of 2.85", "px too wide"})
    EXPECT_EQ(Count(loaded.dom, problem), 1) << problem;
}

}  // namespace
}  // namespace condense

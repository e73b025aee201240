//! The page that a run of everything leaves: well-formed, complete, and needing nothing.

mod support;

use std::path::Path;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;
use support::{lab, room};

/// Runs what is asked for, in its quick size, and leaves the files at `out`.
fn run(out: &Path, arguments: &[&str]) {
    let to = ["run", "--quick", "--out", out.to_str().unwrap()];
    let output = lab(&[&to, arguments].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).unwrap()
}

fn text(node: Node<'_, '_>) -> String {
    let texts = node.descendants().filter(Node::is_text);
    texts.filter_map(|node| node.text()).collect()
}

#[test]
fn a_run_leaves_one_page_with_everything_in_it() {
    let room = room();
    let out = room.path().join("page");
    run(&out, &["all"]);
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    let parsed = parsed(&page);
    refers_to_nothing(&parsed);
    let json = std::fs::read_to_string(out.join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&json).unwrap();

    let array = |value: &'_ Value, key: &str| value[key].as_array().unwrap().clone();
    for record in array(&report, "records") {
        let name = record["about"]["name"].as_str().unwrap();
        let section = parsed
            .descendants()
            .find(|node| node.has_tag_name("section") && node.attribute("id") == Some(name));
        let section = section.unwrap_or_else(|| panic!("no section {name}"));
        let elements = |tag: &str| {
            let found = section.descendants().filter(|node| node.has_tag_name(tag));
            found.map(text).collect::<Vec<_>>()
        };
        if let Some(why) = record["result"]["left_out"]["why"].as_str() {
            assert!(text(section).contains(why), "{name} does not say {why:?}");
            continue;
        }
        let outcome = &record["result"]["done"];
        assert!(outcome.is_object(), "{name} failed: {}", record["result"]);
        for (key, tag, says) in [
            ("tables", "h3", "title"),
            ("plots", "h3", "title"),
            ("verdicts", "strong", "claim"),
        ] {
            for shown in array(outcome, key) {
                let mut says = shown[says].as_str().unwrap().to_owned();
                if let Some(of) = shown["of"].as_str() {
                    says += &format!(" ({of})");
                }
                assert!(elements(tag).contains(&says), "{name} shows no {says:?}");
            }
        }
        for table in array(outcome, "tables") {
            for row in array(&table, "rows") {
                let label = row["label"].as_str().unwrap().to_owned();
                assert!(
                    elements("th").contains(&label),
                    "{name} has no row {label:?}"
                );
            }
        }
        for plot in array(outcome, "plots") {
            let file = out.join(format!("{}.svg", plot["id"].as_str().unwrap()));
            let svg = std::fs::read_to_string(&file).unwrap();
            Document::parse(&svg).unwrap();
        }
        assert_eq!(
            section
                .descendants()
                .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "svg")))
                .count(),
            array(outcome, "plots").len(),
            "{name} draws each plot once"
        );
    }

    one_claim_has_one_rule(&report);
    documents_have_what_the_page_has(&out.join("report.json"), &report);
    for says in ["here / paper", "data-name=", "@media (max-width:34rem)"] {
        assert!(page.contains(says), "{says}");
    }
    for fact in ["commit", "compiler"] {
        let fact = report["build"][fact].as_str().unwrap();
        assert!(page.contains(fact), "{fact}");
    }

    // A later run shows this one beside itself.
    let earlier = out.join("report.json");
    let arguments = ["machine", "--compare", earlier.to_str().unwrap()];
    let later = room.path().join("later");
    run(&later, &arguments);
    let page = std::fs::read_to_string(later.join("index.html")).unwrap();
    assert!(page.contains("here / earlier"));
    let answer = &report["records"][0]["result"]["done"]["verdicts"][0]["holds"];
    let answer = answer.as_str().unwrap();
    assert!(page.contains(&format!("earlier: {answer}<")), "{answer}");
    assert!(page.contains("a quick run of "));
    assert!(report.get("to_come").is_none() && !page.contains("not finished"));
    refers_to_nothing(&self::parsed(&page));
}

/// Whatever experiment judges a claim does it by the rule that the list of claims has, and all
/// that are sure of it say the same.
fn one_claim_has_one_rule(report: &Value) {
    let listed = lab(&["claims", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let records = report["records"].as_array().unwrap().iter();
    let verdicts: Vec<&Value> = records
        .filter_map(|record| record["result"]["done"]["verdicts"].as_array())
        .flatten()
        .collect();
    assert!(verdicts.len() > 30);
    for verdict in &verdicts {
        let claims = listed.as_array().unwrap();
        let claim = claims.iter().find(|claim| claim["id"] == verdict["id"]);
        let claim = claim.unwrap_or_else(|| panic!("no such claim: {verdict}"));
        for key in ["claim", "rule", "paper", "section"] {
            assert_eq!(claim[key], verdict[key], "{verdict}");
        }
        let same = verdicts
            .iter()
            .filter(|v| v["id"] == verdict["id"] && v["of"] == verdict["of"]);
        let sure = |v: &&&Value| v["holds"] != "cannot tell";
        let answers: Vec<&Value> = same.filter(sure).map(|v| &v["holds"]).collect();
        assert!(answers.windows(2).all(|two| two[0] == two[1]), "{verdict}");
    }
}

/// Each paper once, and every verdict's paragraph.
fn documents_have_what_the_page_has(path: &Path, report: &Value) {
    let said = lab(&["verdicts", path.to_str().unwrap()]);
    let said = String::from_utf8(said.stdout).unwrap();
    let mut heads: Vec<&str> = said.lines().filter(|l| l.starts_with("## ")).collect();
    let all = heads.len();
    heads.sort_unstable();
    heads.dedup();
    assert_eq!(heads.len(), all, "a paper stands there twice: {heads:?}");
    for record in report["records"].as_array().unwrap() {
        let verdicts = record["result"]["done"]["verdicts"].as_array();
        for verdict in verdicts.into_iter().flatten() {
            let [paper, paragraph] = ["paper", "paragraph"].map(|key| verdict[key].as_str());
            assert!(heads.contains(&&*format!("## {}", paper.unwrap())));
            let paragraph = paragraph.unwrap().replace('<', "&lt;");
            assert!(said.contains(&paragraph), "{verdict}");
        }
    }
}

/// No script, and no address but of a place within the page.
fn refers_to_nothing(parsed: &Document<'_>) {
    for node in parsed.descendants().filter(Node::is_element) {
        let tag = node.tag_name().name();
        assert!(
            !["script", "link", "iframe", "img", "object", "image", "use"].contains(&tag),
            "{tag}"
        );
        for attribute in node.attributes() {
            let (name, value) = (attribute.name(), attribute.value());
            assert!(!name.starts_with("on") && name != "src", "{name}={value}");
            assert!(name != "href" || value.starts_with('#'), "{name}={value}");
        }
        if tag == "style" {
            let style = text(node);
            assert!(!style.contains("url(") && !style.contains("@import"));
        }
    }
}

//! The expressions of `share/alerts.yml`, evaluated over samples: as much of Prometheus' language as they use, and a panic for the rest.

use std::collections::{BTreeMap, BTreeSet};

/// One sample of one series.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
}

/// What Prometheus has scraped.
#[derive(Clone, Debug, Default)]
pub(super) struct Scraped {
    pub(super) now: Vec<Sample>,
    /// The same as long ago as the ranges of the rules say, for rates.
    pub(super) before: Vec<Sample>,
}

#[derive(Debug)]
enum Value {
    Scalar(f64),
    Vector(Vec<Sample>),
}

impl Value {
    fn vector(self) -> Vec<Sample> {
        match self {
            Self::Vector(samples) => samples,
            Self::Scalar(number) => panic!("{number} is no vector"),
        }
    }
}

/// How a comparison is written, and when it holds.
type Operator = (&'static str, fn(&f64, &f64) -> bool);

/// Which labels two samples have to have in common.
#[derive(Debug)]
enum Matching {
    All,
    On(Vec<String>),
}

impl Matching {
    fn key(&self, sample: &Sample) -> BTreeMap<String, String> {
        let mut labels = sample.labels.clone();
        if let Self::On(names) = self {
            labels.retain(|name, _| names.contains(name));
        }
        labels
    }
}

/// The samples of a page in Prometheus' text format.
pub(super) fn parse_page(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(parse_line).collect()
}

fn parse_line(line: &str) -> Sample {
    let mut tokens = Tokens::of(line);
    let name = tokens.next().expect("a name");
    let labels = if tokens.take("{") { tokens.matchers() } else { Vec::new() };
    let labels = labels.into_iter().map(|(name, _, value)| (name, value)).collect();
    let value = line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a value");
    Sample { name, labels, value }
}

/// The samples of which an alert is made.
pub(super) fn evaluate(expression: &str, scraped: &Scraped) -> Vec<Sample> {
    let mut parser = Parser { tokens: Tokens::of(expression), scraped };
    let found = parser.either().vector();
    assert!(parser.tokens.rest.is_empty(), "{:?} is left of {expression}", parser.tokens.rest);
    found
}

struct Parser<'a> {
    tokens: Tokens,
    scraped: &'a Scraped,
}

impl Parser<'_> {
    fn either(&mut self) -> Value {
        let mut left = self.both();
        while self.tokens.take("or") {
            let matching = self.matching();
            let (mut all, right) = (left.vector(), self.both().vector());
            let known: BTreeSet<_> = all.iter().map(|sample| matching.key(sample)).collect();
            all.extend(right.into_iter().filter(|sample| !known.contains(&matching.key(sample))));
            left = Value::Vector(all);
        }
        left
    }

    fn both(&mut self) -> Value {
        let mut left = self.comparison();
        while self.tokens.take("and") {
            let matching = self.matching();
            let right = self.comparison().vector();
            let known: BTreeSet<_> = right.iter().map(|sample| matching.key(sample)).collect();
            let left_samples = left.vector().into_iter();
            left = Value::Vector(left_samples.filter(|sample| known.contains(&matching.key(sample))).collect());
        }
        left
    }

    fn matching(&mut self) -> Matching {
        if self.tokens.take("on") { Matching::On(self.tokens.names()) } else { Matching::All }
    }

    fn comparison(&mut self) -> Value {
        let left = self.product();
        let operators: [Operator; 5] =
            [("<=", f64::le), (">=", f64::ge), ("==", f64::eq), ("<", f64::lt), (">", f64::gt)];
        let Some((_, holds)) = operators.into_iter().find(|(operator, _)| self.tokens.take(operator)) else {
            return left;
        };
        let mut samples = left.vector();
        match self.product() {
            Value::Scalar(limit) => samples.retain(|sample| holds(&sample.value, &limit)),
            Value::Vector(right) => samples.retain(|sample| {
                right.iter().any(|other| other.labels == sample.labels && holds(&sample.value, &other.value))
            }),
        }
        Value::Vector(samples)
    }

    fn product(&mut self) -> Value {
        let mut left = self.term();
        while self.tokens.take("*") {
            left = match (left, self.term()) {
                (Value::Scalar(factor), Value::Vector(samples)) => {
                    let scale = |sample: Sample| Sample { value: factor * sample.value, ..sample };
                    Value::Vector(samples.into_iter().map(scale).collect())
                }
                other => panic!("{other:?} are not multiplied in any rule"),
            };
        }
        left
    }

    fn term(&mut self) -> Value {
        let token = self.tokens.next().expect("more");
        if let Ok(number) = token.parse() {
            return Value::Scalar(number);
        }
        match token.as_str() {
            "(" => {
                let inside = self.either();
                self.tokens.expect(")");
                inside
            }
            "absent" => {
                let is_absent = self.argument().is_empty();
                let sample = Sample { name: String::new(), labels: BTreeMap::new(), value: 1.0 };
                Value::Vector(if is_absent { vec![sample] } else { Vec::new() })
            }
            "rate" => self.rate(),
            "count" => self.aggregate(|values| values.len() as f64),
            "sum" => self.aggregate(|values| values.iter().sum()),
            "min" => self.aggregate(|values| values.iter().copied().fold(f64::INFINITY, f64::min)),
            "max" => self.aggregate(|values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            name => Value::Vector(self.select(name, &self.scraped.now)),
        }
    }

    fn argument(&mut self) -> Vec<Sample> {
        self.tokens.expect("(");
        let inside = self.either().vector();
        self.tokens.expect(")");
        inside
    }

    /// Of nothing there is no aggregate, not even zero.
    fn aggregate(&mut self, of: fn(&[f64]) -> f64) -> Value {
        let by = if self.tokens.take("by") { self.tokens.names() } else { Vec::new() };
        let by = Matching::On(by);
        let mut groups = BTreeMap::<_, Vec<f64>>::new();
        for sample in self.argument() {
            groups.entry(by.key(&sample)).or_default().push(sample.value);
        }
        let sample = |(labels, values): (_, Vec<f64>)| Sample { name: String::new(), labels, value: of(&values) };
        Value::Vector(groups.into_iter().map(sample).collect())
    }

    fn rate(&mut self) -> Value {
        self.tokens.expect("(");
        let name = self.tokens.next().expect("a name");
        let (now, before) =
            (self.select_at(&name, |scraped| &scraped.now), self.select_at(&name, |scraped| &scraped.before));
        self.tokens.expect("[");
        let range = self.tokens.next().expect("a range");
        let minutes: f64 = range.strip_suffix('m').and_then(|minutes| minutes.parse().ok()).expect("minutes");
        self.tokens.expect("]");
        self.tokens.expect(")");
        let rate = |sample: Sample| {
            let earlier = before.iter().find(|earlier| earlier.labels == sample.labels)?;
            Some(Sample { name: String::new(), value: (sample.value - earlier.value) / (minutes * 60.0), ..sample })
        };
        Value::Vector(now.into_iter().filter_map(rate).collect())
    }

    /// As [`Parser::select`], for a range, which no rule narrows by labels.
    fn select_at(&self, name: &str, when: fn(&Scraped) -> &Vec<Sample>) -> Vec<Sample> {
        when(self.scraped).iter().filter(|sample| sample.name == name).cloned().collect()
    }

    fn select(&mut self, name: &str, samples: &[Sample]) -> Vec<Sample> {
        let matchers = if self.tokens.take("{") { self.tokens.matchers() } else { Vec::new() };
        let fits = |sample: &&Sample| {
            sample.name == name
                && matchers.iter().all(|(label, operator, wanted)| {
                    let found = sample.labels.get(label).map_or("", String::as_str);
                    match operator.as_str() {
                        "=" => found == wanted,
                        "=~" => wanted.split('|').any(|wanted| found == wanted),
                        other => panic!("{other} is not used in any rule"),
                    }
                })
        };
        samples.iter().filter(fits).cloned().collect()
    }
}

/// Words, numbers, quoted texts without their marks, and signs.
struct Tokens {
    rest: Vec<String>,
}

impl Tokens {
    fn of(text: &str) -> Self {
        let mut rest = Vec::new();
        let mut text = text.trim_start();
        while let Some(first) = text.chars().next() {
            let is_word = |character: char| character.is_ascii_alphanumeric() || "_.:".contains(character);
            let length = match first {
                '"' => 2 + text[1..].find('"').expect("a closing mark"),
                _ if is_word(first) => text.find(|character| !is_word(character)).unwrap_or(text.len()),
                _ if ["<=", ">=", "==", "=~"].iter().any(|sign| text.starts_with(sign)) => 2,
                _ => first.len_utf8(),
            };
            rest.push(text[..length].trim_matches('"').to_owned());
            text = text[length..].trim_start();
        }
        rest.reverse();
        Self { rest }
    }

    fn next(&mut self) -> Option<String> {
        self.rest.pop()
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is_next = self.rest.last().is_some_and(|token| token == wanted);
        if is_next {
            self.rest.pop();
        }
        is_next
    }

    fn expect(&mut self, wanted: &str) {
        assert!(self.take(wanted), "{wanted} is not next in {:?}", self.rest);
    }

    /// Names in parentheses.
    fn names(&mut self) -> Vec<String> {
        self.expect("(");
        let mut names = Vec::new();
        while !self.take(")") {
            names.extend(self.next());
            self.take(",");
        }
        names
    }

    /// Labels behind an opening brace, each with its sign and value.
    fn matchers(&mut self) -> Vec<(String, String, String)> {
        let mut matchers = Vec::new();
        while !self.take("}") {
            let [name, sign, value] = [(); 3].map(|()| self.next().expect("a label, a sign and a value"));
            matchers.push((name, sign, value));
            self.take(",");
        }
        matchers
    }
}

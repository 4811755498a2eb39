//! What a table of points is made of (the tables are in [`crate::tables`]), and the places to die at that follow from one.

use std::collections::HashMap;

use polis_testkit::Steps;

/// A call site, and so all points around one durable step.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) steps: Steps,
    pub(crate) windows: &'static [&'static str],
}

/// A start: what its main line passes in order, and what is passed beside it, at times that chance decides.
pub(crate) struct Start {
    pub(crate) name: &'static str,
    pub(crate) sites: Vec<Site>,
    pub(crate) beside: Vec<Beside>,
}

/// A site that other runnables pass beside the Manager. Its name may be one of the main line, too: what the Manager reads, others
/// read as well.
#[derive(Clone, Copy)]
pub(crate) struct Beside {
    pub(crate) site: Site,
    pub(crate) often: Often,
}

/// How often a site is passed beside the main line of a start.
#[derive(Clone, Copy)]
pub(crate) enum Often {
    /// At least and at most so many times.
    Between(usize, usize),
    /// At least so many times until the node has come to rest, and again whenever something changes.
    AtLeast(usize),
    /// Only some seconds later, and then again and again.
    Later,
}

/// A place to die at: a point, passed for the `pass`-th time.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) point: String,
    pub(crate) pass: usize,
    /// Whether each start passes it. What is passed beside the main line may be passed less often than at most.
    pub(crate) certain: bool,
    pub(crate) windows: &'static [&'static str],
}

impl Site {
    pub(crate) fn points(&self) -> impl Iterator<Item = String> {
        self.steps.points(self.name)
    }
}

impl Often {
    /// At least so often, and at most, until the node has come to rest. What is not bounded has no most.
    pub(crate) const fn until_rest(self) -> (usize, Option<usize>) {
        match self {
            Self::Between(least, most) => (least, Some(most)),
            Self::AtLeast(least) => (least, None),
            Self::Later => (0, None),
        }
    }

    /// How often a start that goes on for as long as is needed passes it for sure, and at which passes more it is worth trying.
    const fn to_die_at(self) -> (usize, usize) {
        match self {
            Self::Between(least, most) => (least, most),
            Self::AtLeast(least) => (least, least),
            Self::Later => (1, 1),
        }
    }
}

impl Start {
    /// The points of the main line, in order.
    pub(crate) fn points(&self) -> Vec<String> {
        self.sites.iter().flat_map(Site::points).collect()
    }

    /// Every place to die at.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut passes = HashMap::<String, usize>::new();
        let main = self.sites.iter().flat_map(|site| site.points().map(|point| (point, site.windows)));
        let mut places: Vec<Place> = main
            .map(|(point, windows)| {
                let pass = passes.entry(point.clone()).or_default();
                *pass += 1;
                Place { point, pass: *pass, certain: true, windows }
            })
            .collect();
        for Beside { site, often } in &self.beside {
            let (least, most) = often.to_die_at();
            for point in site.points() {
                let in_main = passes.get(&point).copied().unwrap_or_default();
                places.extend((1..=most).map(|pass| Place {
                    point: point.clone(),
                    pass: in_main + pass,
                    certain: pass <= least,
                    windows: site.windows,
                }));
            }
        }
        places
    }

    /// The points that are passed only after a while.
    pub(crate) fn later(&self) -> impl Iterator<Item = String> {
        let is_later = |beside: &&Beside| match beside.often {
            Often::Later => true,
            Often::Between(..) | Often::AtLeast(_) => false,
        };
        self.beside.iter().filter(is_later).flat_map(|beside| beside.site.points())
    }

    /// Whether a start that has passed these points has come to rest: its main line is at its end, and everything was passed
    /// beside it that will be for sure.
    pub(crate) fn is_at_rest(&self, passed: &[String]) -> bool {
        let count = |points: &[String], point: &str| points.iter().filter(|passed| *passed == point).count();
        let main = self.points();
        let beside = self.beside.iter().flat_map(|beside| {
            let (least, _) = beside.often.until_rest();
            beside.site.points().map(move |point| (point, least))
        });
        main.iter()
            .map(|point| (point.clone(), 0))
            .chain(beside)
            .all(|(point, least)| count(passed, &point) >= count(&main, &point) + least)
    }
}

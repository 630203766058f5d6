// What can be told by a machine of a page that people must be able to read: names for what is drawn,
// labels, order of headings, targets of links, contrast of text (WCAG 2.2: 4.5 to 1), and that the
// page itself never scrolls sideways. Appended to a page under test; says what it finds in
// body.dataset, and to the page that frames it.
(function () {
  'use strict';

  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });

  // [r, g, b, a] of any CSS colour, 0 to 1.
  function colourOf(css) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data, (byte) => byte / 255);
  }

  function over(front, back) {
    return [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
  }

  function luminance(colour) {
    const [r, g, b] = colour.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function contrast(a, b) {
    const [dark, light] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (light + 0.05) / (dark + 0.05);
  }

  function backgroundOf(element) {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(colourOf(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, front) => over(front, back), [1, 1, 1, 1]);
  }

  function isVisible(element) {
    return element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && !element.closest('.aloud');
  }

  const seen = new Map();  // colours → contrast, since most texts have the same
  function textContrast(colour, element, extra) {
    const background = extra ? colourOf(extra) : backgroundOf(element);
    const key = colour + background;
    if (!seen.has(key)) seen.set(key, contrast(over(colourOf(colour), background), background));
    return seen.get(key);
  }

  function check() {
    const problems = [];
    const all = (selector) => Array.from(document.querySelectorAll(selector));
    const where = (element) => `${element.tagName.toLowerCase()} “${(element.textContent || '').trim().slice(0, 40)}”`;

    const ids = all('[id]').map((element) => element.id);
    for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) problems.push(`id ${id} twice`);

    for (const chart of all('.chart'))
      if (chart.getAttribute('role') !== 'graphics-document' || !chart.getAttribute('aria-label'))
        problems.push(`chart ${chart.id} has no name`);
    for (const region of all('.scroll'))
      if (region.tabIndex !== 0 || !region.getAttribute('aria-label')) problems.push('a table that no keyboard reaches');
    for (const input of all('select, input'))
      if (!(input.labels && input.labels.length && input.labels[0].textContent.trim())) problems.push('a control without a label');
    for (const link of all('a')) {
      const href = link.getAttribute('href') || '';
      if (!link.textContent.trim() || !href) problems.push(`${where(link)} leads nowhere`);
      if (href.startsWith('#') && !document.getElementById(href.slice(1))) problems.push(`${href} is not there`);
    }
    for (const head of all('th')) if (!head.scope) problems.push(`${where(head)} has no scope`);

    let level = 0;
    for (const heading of all('h1, h2, h3, h4, h5, h6')) {
      const own = Number(heading.tagName[1]);
      if (own > level + 1) problems.push(`${where(heading)} comes after level ${level}`);
      level = own;
    }

    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || element.closest('script, style, noscript') || !isVisible(element)) continue;
      const style = getComputedStyle(element);
      const in_chart = element instanceof SVGElement;
      const colour = in_chart ? style.fill : style.color;
      if (in_chart && style.fill === 'none') continue;
      const ratios = [textContrast(colour, element.closest('svg') || element)];
      // Figures in a heat map stand on its strongest colour too.
      if (in_chart && element.closest('.panel') && element.closest('.role-mark')) {
        const heat = getComputedStyle(document.documentElement).getPropertyValue('--heat');
        ratios.push(textContrast(colour, element, heat));
      }
      const worst = Math.min(...ratios);
      if (worst < 4.5) problems.push(`${where(element)} has a contrast of ${worst.toFixed(2)}`);
    }

    const root = document.documentElement;
    if (root.scrollWidth > root.clientWidth) problems.push(`the page is ${root.scrollWidth - root.clientWidth} px too wide`);
    return Array.from(new Set(problems));
  }

  setTimeout(() => {
    const problems = check();
    const told = {
      checked: `${innerWidth} px`,
      dark: String(matchMedia('(prefers-color-scheme: dark)').matches),
      drawn: String(document.querySelectorAll('[data-drawn="yes"]').length),
      problems: problems.slice(0, 20).join('; '),
    };
    Object.assign(document.body.dataset, told);
    if (parent !== window) parent.postMessage(told, '*');
  }, 8000);
})();
